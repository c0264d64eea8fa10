"""
Which commands does ``pgonce`` have?

Runs in a shell. Invariant: this stands above both packages, because one command writes rows and two look at
tables, and ``offsets_store`` never imports ``sink``; no command imports pyspark before it needs it.
"""

from pgonce.offsets_store.cli.main import app
from pgonce.sink.cli.check import check
from pgonce.sink.cli.dead_letters import dead_letters
from pgonce.sink.cli.doctor import doctor

app.command()(check)
app.command()(doctor)
app.command("dead-letters")(dead_letters)


def main() -> None:
    """Run the command line; the entry point of the distribution."""
    app()
