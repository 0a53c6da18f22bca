"""Names that a workflow must not call, each with its reason."""

from __future__ import annotations

import inspect
from pathlib import PurePath
from types import ModuleType
from typing import Any

CLOCK = "reads the clock"
RANDOM = "draws randomness"
_IO = "does I/O"
_THREADS = "starts threads or processes"

# fmt: off
_PATH_IO = (
    "absolute", "chmod", "cwd", "exists", "expanduser", "glob", "group", "hardlink_to", "home", "is_dir", "is_file",
    "is_mount", "is_symlink", "iterdir", "lstat", "mkdir", "open", "owner", "read_bytes", "read_text", "readlink",
    "rename", "replace", "resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "walk",
    "write_bytes", "write_text",
)
_OS_PATH_IO = (
    "abspath", "exists", "expanduser", "getatime", "getctime", "getmtime", "getsize", "isdir", "isfile", "islink",
    "ismount", "lexists", "realpath", "samefile",
)
_IO_MODULES = (
    "aiohttp", "asyncio.streams", "asyncio.subprocess", "asyncpg", "boto3", "botocore", "dbm", "fileinput", "ftplib",
    "glob", "google.genai.client", "google.genai.Client", "grpc", "http.client", "http.server", "httpx", "imaplib",
    "os", "poplib", "psycopg", "psycopg2", "pymongo", "redis", "requests", "select", "selectors", "shelve", "shutil",
    "smtplib", "socket", "socketserver", "sqlite3", "subprocess", "telnetlib", "tempfile", "temporalio.client",
    "urllib.request", "urllib3", "websockets", "xmlrpc",
)
# fmt: on

_IMPURE: dict[str, str] = {
    "time": CLOCK,
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow"), CLOCK),
    **dict.fromkeys(("datetime.datetime.today", "datetime.date.today"), CLOCK),
    **dict.fromkeys(("random", "secrets", "numpy.random", "os.urandom", "os.getrandom"), RANDOM),
    **dict.fromkeys((f"uuid.{name}" for name in ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8", "getnode")), RANDOM),
    **dict.fromkeys(("builtins.open", "builtins.input", "io.open", "io.FileIO", "codecs.open"), _IO),
    **dict.fromkeys(_IO_MODULES, _IO),
    **dict.fromkeys((f"pathlib.Path.{name}" for name in _PATH_IO), _IO),
    **dict.fromkeys((f"{os}.{name}" for os in ("posixpath", "ntpath", "genericpath") for name in _OS_PATH_IO), _IO),
    **dict.fromkeys(("threading", "thread", "multiprocessing", "concurrent.futures"), _THREADS),
    **dict.fromkeys(("asyncio.to_thread", "asyncio.threads", "asyncio.run", "asyncio.runners"), _THREADS),
}
_PURE = frozenset(("time.strptime", "time.struct_time", "os.fspath", "os.fsencode", "os.fsdecode", "os.PathLike"))
_IMPURE_DATA = ("os.environ", "os.environb")
_RENAMED = {"posix": "os", "nt": "os"}

FILE_METHODS = frozenset(("read_text", "read_bytes", "write_text", "write_bytes"))
"""Methods that do I/O on whatever object has them."""
FILE_METHOD_REASON = _IO


def why_impure(path: str, value: Any, *, called: bool) -> str | None:
    """Return why code in a workflow must not use something, or `None` if it may.

    Args:
        path: Its dotted name, as the code reaches it.
        value: What it is, or `None` if that is unknown.
        called: It is called, not just mentioned. Classes and data may be mentioned.
    """
    if any(path == data or path.startswith(f"{data}.") for data in _IMPURE_DATA):
        return _IO
    if not called and not inspect.isroutine(value):
        return None
    if inspect.isclass(value) and issubclass(value, BaseException):
        return None
    names = [path] if value is None else [path, canonical_name(value)]
    if any(name in _PURE for name in names):
        return None
    return next((reason for name in names if (reason := _reason(name)) is not None), None)


def _reason(name: str) -> str | None:
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_IMPURE[prefix] for prefix in prefixes if prefix in _IMPURE), None)


def canonical_name(value: Any) -> str:
    """Return the dotted name of a module, class or function, or of the class of another value."""
    if isinstance(value, ModuleType):
        return value.__name__
    if inspect.isroutine(value):
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            return f"{canonical_name(owner)}.{value.__name__}"
    elif not inspect.isclass(value):
        return canonical_name(type(value))
    elif issubclass(value, PurePath):
        # Its subclasses, and the module in which it stands, differ with system and version.
        return "pathlib.Path"
    module = (getattr(value, "__module__", None) or "").lstrip("_")
    return f"{_RENAMED.get(module, module)}.{value.__qualname__}"
