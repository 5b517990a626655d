"""`mailsvc completion`: prints the script that completes commands and options when you press Tab. The completion itself is click's."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes the names of commands and options in your shell. Needs no settings.

    bash: mailsvc completion bash > /etc/bash_completion.d/mailsvc

    zsh: mailsvc completion zsh > /usr/local/share/zsh/site-functions/_mailsvc

    fish: mailsvc completion fish > /etc/fish/completions/mailsvc.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "mailsvc", "_MAILSVC_COMPLETE").source())
