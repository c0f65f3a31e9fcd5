"""The pickles in PyTorch's files, read without Python's unpickler.

A pickle is a program. This reader runs the few instructions that build tables of tensors, on a stack of its own, and
makes nothing else than plain values and descriptions of tensors. Each instruction costs as much as the bytes that it
takes: no key is a nested tuple, whose hash may take years, and no number in the file sizes a memory.
"""

import pickletools
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, BinaryIO, NamedTuple

from limba.files import untrusted_files
from limba.files.untrusted_files import cut, shown

# Bytes of an element, by the name of a storage's class.
ITEM_SIZES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}

# A state_dict takes about 40 instructions a tensor.
_MOST_INSTRUCTIONS = 2_000_000
# Of PyTorch's tensors, and of keys and numbers that are of use here.
_MOST_DIMS, _MOST_KEY_LENGTH, _MOST_BITS = 64, 4096, 256


class NotAllowedError(Exception):
    """The name of what a pickle asked for."""


class Storage(NamedTuple):
    key: str
    type_name: str
    offset: int  # Of a storage that is itself part of another one.


class Tensor(NamedTuple):
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Unread:
    """In place of values that training scripts save beside the model, such as metrics. It keeps nothing of them."""

    __slots__ = ()


# --------------------------------------------- what a pickle may ask for ----------------------------------------------


def _table(items: Any = ()) -> dict[Any, Any]:
    """In place of OrderedDict. Python 2 gives it a list of pairs."""
    table: dict[Any, Any] = {}
    for item in items:
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise UnpicklingError(f"a table of {shown(item)}")
        table[_key(item[0])] = item[1]
    return table


def _unread(*args: Any) -> Unread:
    del args
    return Unread()


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    del rest  # requires_grad, hooks
    for sizes in (shape, strides):
        if not isinstance(sizes, list | tuple) or len(sizes) > _MOST_DIMS:
            raise UnpicklingError(f"a tensor with the dims {shown(sizes)}")
    if not isinstance(storage, Storage) or not all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
        raise UnpicklingError(f"a tensor of {shown(storage)} from {shown(offset)} on, {shown(shape)}, {shown(strides)}")
    if len(shape) != len(strides):
        raise UnpicklingError(f"a tensor of {len(shape)} dims with {len(strides)} strides")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: Any, *rest: Any) -> Any:
    del rest  # requires_grad, hooks
    return tensor


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _table,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", name): name for name in ITEM_SIZES},
    # NumPy's numbers, before version 2 and since, and the bytes in them.
    ("numpy", "dtype"): _unread,
    ("_codecs", "encode"): _unread,
    ("numpy.core.multiarray", "scalar"): _unread,
    ("numpy._core.multiarray", "scalar"): _unread,
}


def _key(key: Any) -> Any:
    """A key of a table; one that is costly to compare, or no plain value, becomes a key that nobody asks for."""
    is_plain = isinstance(key, bool | int | float | type(None)) or (
        isinstance(key, str) and len(key) < _MOST_KEY_LENGTH
    )
    return key if is_plain else Unread()


# ------------------------------------------------------ the stack -----------------------------------------------------


def load(file: BinaryIO, size: int) -> tuple[Any, dict[str, str]]:
    """The next pickle in a file, and the types of the storages it speaks of, by their keys.

    Args:
      file: stands behind the pickle's last byte afterwards.
      size: of the file, in bytes.

    Raises:
      NotAllowedError: if it asks for anything else than the parts of tensors.
      UnpicklingError: if it is damaged or too large.
    """
    stack = _Stack()
    bounded: Any = _Bounded(file, min(size - file.tell(), untrusted_files.MOST_BYTES))
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(bounded)):
            if number > _MOST_INSTRUCTIONS:
                raise UnpicklingError(f"it has more than {_MOST_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                return stack.values.pop(), stack.storage_types
            stack.run(opcode.name, argument)
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UnpicklingError(cut(f"{type(error).__name__}: {error}")) from error
    raise UnpicklingError("it has no end")


class _Bounded:
    """A file of which an instruction cannot ask for more than there is, whatever length it says."""

    def __init__(self, file: BinaryIO, num_bytes: int):
        self._file = file
        self._left = num_bytes

    def read(self, length: int) -> bytes:
        if length > self._left:
            raise UnpicklingError(f"{length:,} bytes are asked for, and {self._left:,} may follow")
        self._left -= length
        return self._file.read(length)

    def readline(self) -> bytes:
        line = self._file.readline(self._left)
        self._left -= len(line)
        return line


class _Stack:
    """The state of a pickle's program."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.storage_types: dict[str, str] = {}
        self._below: list[list[Any]] = []  # What lies under each mark.
        self._memo: dict[int, Any] = {}
        self._copies = _MOST_INSTRUCTIONS  # How many items of tables may still be copied.

    def run(self, name: str, argument: Any) -> None:
        """Runs one instruction, under its name in `pickletools`."""
        if name in _CONSTANTS:
            self.values.append(_CONSTANTS[name]())
        elif name in _PLAIN:
            self._push_plain(name, argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self.values[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.values.append(self._memo[argument])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, function = argument.split(" ") if argument is not None else self.take(2)
            self.values.append(_allowed(module, function))
        elif name in _INSTRUCTIONS:
            _INSTRUCTIONS[name](self)
        elif name not in ("PROTO", "FRAME"):
            raise UnpicklingError(f"the instruction {name} builds no table of tensors")

    def _push_plain(self, name: str, argument: Any) -> None:
        if name.endswith("STRING"):  # Python 2's, which `pickletools` gives as Latin-1.
            argument = argument.encode("latin-1").decode("utf-8")
        is_huge = isinstance(argument, int) and argument.bit_length() > _MOST_BITS
        self.values.append(Unread() if is_huge or isinstance(argument, bytes | bytearray) else argument)

    def push(self, value: Any) -> None:
        self.values.append(value)

    def mark(self) -> None:
        self._below.append(self.values)
        self.values = []

    def since_mark(self) -> list[Any]:
        items, self.values = self.values, self._below.pop()
        return items

    def take(self, count: int) -> list[Any]:
        taken = self.values[-count:]
        if len(taken) < count:
            raise UnpicklingError("it takes what is not there")
        del self.values[-count:]
        return taken

    def pop(self) -> None:
        if self.values:
            self.values.pop()
        else:
            self.since_mark()

    def push_tuple(self, count: int) -> None:
        self.values.append(tuple(self.take(count)))

    def push_table(self) -> None:
        items = self.since_mark()
        self.values.append({})
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        table = self.values[-1]
        if not isinstance(table, dict):
            raise UnpicklingError(f"items of {shown(table)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[_key(key)] = value

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.values[-1], list):
            raise UnpicklingError(f"items of {shown(self.values[-1])}")
        self.values[-1].extend(items)

    def call(self) -> None:
        function, arguments = self.take(2)
        if not callable(function) or not isinstance(arguments, tuple):
            raise UnpicklingError(f"a call of {shown(function)} with {shown(arguments)}")
        self._copies -= sum(len(argument) for argument in arguments if isinstance(argument, list | tuple | dict))
        if self._copies < 0:
            raise UnpicklingError("it copies the same tables again and again")
        self.values.append(function(*arguments))

    def set_state(self) -> None:
        # A state_dict has the versions of its modules as its state, which are of no use here.
        owner, _ = self.take(2)
        if not isinstance(owner, dict | Unread):
            raise UnpicklingError(f"a state of {shown(owner)}")
        self.values.append(owner)

    def push_storage(self) -> None:
        (pid,) = self.take(1)
        match pid:
            case ("storage", str(type_name), str(key), _, int(), *view) if view in ([], [None]):
                offset = 0
            case ("storage", str(type_name), str(key), _, int(), (str(), int(offset), int())) if offset >= 0:
                pass
            case _:
                raise UnpicklingError(f"a storage called {shown(pid)}")
        if type_name not in ITEM_SIZES or self.storage_types.setdefault(key, type_name) != type_name:
            before = self.storage_types.get(key)
            raise UnpicklingError(f"a storage {shown(key)} of {shown(type_name)}, {before} before")
        self.values.append(Storage(key, type_name, offset))


def _allowed(module: Any, name: Any) -> Any:
    if not isinstance(module, str) or not isinstance(name, str):
        raise UnpicklingError(f"a function called {shown(name)} of {shown(module)}")
    if (module, name) not in _ALLOWED:
        raise NotAllowedError(cut(f"{module}.{name}"))
    return _ALLOWED[module, name]


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": Unread,
}
_PLAIN = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_INSTRUCTIONS: dict[str, Callable[[_Stack], Any]] = {
    "MARK": _Stack.mark,
    "POP": _Stack.pop,
    "POP_MARK": _Stack.since_mark,
    "DUP": lambda stack: stack.values.append(stack.values[-1]),
    "TUPLE": lambda stack: stack.push(tuple(stack.since_mark())),
    "TUPLE1": lambda stack: stack.push_tuple(1),
    "TUPLE2": lambda stack: stack.push_tuple(2),
    "TUPLE3": lambda stack: stack.push_tuple(3),
    "LIST": lambda stack: stack.push(stack.since_mark()),
    "DICT": _Stack.push_table,
    "APPEND": lambda stack: stack.extend(stack.take(1)),
    "APPENDS": lambda stack: stack.extend(stack.since_mark()),
    "SETITEM": lambda stack: stack.set_items(stack.take(2)),
    "SETITEMS": lambda stack: stack.set_items(stack.since_mark()),
    "ADDITEMS": _Stack.since_mark,
    "FROZENSET": lambda stack: stack.push(_unread(*stack.since_mark())),
    "REDUCE": _Stack.call,
    "NEWOBJ": _Stack.call,
    "BUILD": _Stack.set_state,
    "BINPERSID": _Stack.push_storage,
}
