"""Training of the tiny vision-language judge of the shapes world: `python -m trainers.shapes_vlm.train`."""
