"""``vendor-sdk completion``: what a shell needs to complete commands, options and names of backends."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

STARTUP = {
    "bash": '~/.bashrc: eval "$(vendor-sdk completion bash)"',
    "zsh": '~/.zshrc: eval "$(vendor-sdk completion zsh)"',
    "fish": "~/.config/fish/config.fish: vendor-sdk completion fish | source",
}


@click.command("completion", epilog="\b\n" + "\n".join(STARTUP.values()))
@click.argument("shell", type=click.Choice(list(STARTUP)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL. Its startup file reads it."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "vendor-sdk", "_VENDOR_SDK_COMPLETE").source())
