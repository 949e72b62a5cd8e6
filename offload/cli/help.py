"""Help texts of the commands: `-h`, arguments by their names alone, one section per group of commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand

from offload.cli.options import is_place, is_place_or_missing

# Of every command and group.
CONTEXT = {"help_option_names": ["-h", "--help"]}

# typer adds the Python type to the name of an argument; to the help the range of a number, and that an
# argument is required, which the usage line shows.
_TYPE = re.compile(r" <.*>")
_NOISE = re.compile(r"\s*\[{0}\]|; {0}|{0}; ".format(r"(?:\d+<=)?x[<>]=\d+"))
# The arguments of which one may be the store.
_NAMES = ("ID", "[ID]", "ID...", "SESSION")
_PYTHON_ERROR = "Value error, "
# As typer writes an argument whose name has brackets already.
_OPTIONAL = re.compile(r"\[\[([A-Z]+)(?:\.\.\.)?\](?:\.\.\.)?\](?:\.\.\.)?")
_REQUIRED = re.compile(r"\{(.+?)(?:\.\.\.)?\}")


def group(summary: str, epilog: str | None = None) -> typer.Typer:
    """Return an app for a group of commands."""
    return typer.Typer(
        help=summary,
        epilog=epilog,
        context_settings=CONTEXT,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


class HelpfulCommand(TyperCommand):
    """A command whose help is written for people who do not know Python's types.

    An option whose metavar is in brackets, as in `--prices [FILE]`, may have no value; it is then "". The
    value of `--store` may also be an argument.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; the error of a value does not begin with the name of a Python error."""
        ctx.allow_extra_args = True
        try:
            super().parse_args(ctx, list(self._with_values(args)))
        except typer.BadParameter as error:
            error.message = error.message.removeprefix(_PYTHON_ERROR)
            raise
        if ctx.params.get("store", "") is None:
            self._take_store(ctx)
        if ctx.args and not ctx.resilient_parsing:
            once = "; name the store once, as an argument or with --store" * ("store" in ctx.params)
            ctx.fail(f"Got unexpected extra argument ({' '.join(ctx.args)}){once}")
        return list(ctx.args)

    def _take_store(self, ctx: Any) -> None:
        """Take as the store an argument that is a URL or a folder and no id or session, or one too many."""
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        named = [param for param in arguments if param.metavar in _NAMES and param.nargs in (1, -1)]
        values = [ctx.params[param.name] or () for param in named]
        given = [each for value in values for each in ([value] if isinstance(value, str) else value)]
        given += ctx.args
        extra = ctx.args[0] if len(ctx.args) == 1 else None
        # The path of a record's file may be that of another machine.
        has_ids = any(param.metavar != "SESSION" for param in named)
        store = next(filter(is_place if has_ids else is_place_or_missing, given), extra)
        if store is None:
            return
        if len(given) <= sum(param.required for param in named):
            if is_place(store):
                ctx.fail(f"Missing argument '{named[0].metavar}': {store} is a store")
            return
        given.remove(store)
        ctx.params["store"] = store
        for param in named:
            taken = len(given) if param.nargs < 0 else 1
            ctx.params[param.name] = given[:taken] if param.nargs < 0 else next(iter(given), None)
            del given[:taken]
        ctx.args = given

    def _with_values(self, args: list[str]) -> Iterator[str]:
        """Yield the arguments, with an empty value behind each option that may have none and has none."""
        optional = {
            name for param in self.params if str(param.metavar).startswith("[") for name in param.opts
        }
        for arg, following in zip(args, [*args[1:], "-"], strict=False):
            yield arg
            if arg in optional and following.startswith("-"):
                yield ""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: what is required without braces, the rest in one bracket."""
        pieces = [_REQUIRED.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]
        return [_OPTIONAL.sub(r"[\1...]" if piece.count("...") else r"[\1]", piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments that have a help text, and the options."""
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            name, text = param.get_help_record(ctx) or ("", "")
            kind = param.param_type_name
            text = _NOISE.sub("", text)
            if kind == "argument":
                text = text.removesuffix("[required]").rstrip()
            if text:
                records[kind].append((_TYPE.sub("", name), text))
        for kind, rows in records.items():
            if rows:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(rows)
