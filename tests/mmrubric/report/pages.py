"""Reads a report as a browser would."""

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "link", "br", "path", "use", "circle"}


class Page(HTMLParser):
    """Collects text, tags, pictures and links, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.classes: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        values = dict(attrs)
        self.classes += (values.get("class") or "").split()
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset") and v]
        if tag == "img":
            self.images.append(values)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data
