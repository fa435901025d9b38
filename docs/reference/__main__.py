"""Write ``docs/reference.md`` from the code and the OpenAPI document: ``python -m docs.reference``."""

from docs.reference.page import FILE, page


def main() -> None:
    FILE.write_text(page())
    print(FILE.name)


if __name__ == "__main__":
    main()
