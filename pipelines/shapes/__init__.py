"""Training of the shipped generator of the shapes world: `python -m pipelines.shapes.train --help`."""
