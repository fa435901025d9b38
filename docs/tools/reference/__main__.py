"""Write the generated pages of ``docs/reference``: ``python -m docs.tools.reference``."""

from docs.tools.reference.pages import FOLDER, PAGES


def main() -> None:
    """Write all pages, and print their names."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
