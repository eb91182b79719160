"""`python -m msign` is the command `msign`."""

from msign.cli import app

if __name__ == "__main__":
    app(prog_name="msign")
