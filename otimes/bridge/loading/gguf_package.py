"""The gguf package under transformers, so that a file is read once.

A file of a real model has a vocabulary of many thousand texts in its header, which takes seconds to
read. transformers asks for the header three times (config, tokenizer, tensors), and builds the
table of tensor names once for each of the modules of a model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from threading import RLock
from typing import Any

import numpy as np

_lock = RLock()


@contextmanager
def read_once() -> Generator[list[str]]:
    """While the body runs, a file's header is read once, and no progress bar is shown.

    It yields a list, into which the names of the tensors come that transformers leaves out. In the
    end what was kept is dropped, and both packages are as they were. A name that another release of
    them does not have is left alone: then the file is read more often. Threads wait for each other.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    class Reader(gguf.GGUFReader):
        def _build_fields(self, offs: Any, count: Any) -> Any:
            # the same mapped bytes as a plain array: its slices cost a third of a memmap's
            self.data = np.asarray(self.data)
            return super()._build_fields(offs, count)

    left_out = list[str]()
    instead: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (gguf, "GGUFReader", lambda _: cache(Reader)),
        (gguf, "get_tensor_name_map", cache),
        (reading, "load_gguf_checkpoint", lambda load: _headers_once(load, left_out)),
        (reading, "tqdm", lambda bar: partial(bar, disable=True)),
    )
    with _lock, ExitStack() as stack:
        for module, name, wrapped in instead:
            if (found := getattr(module, name, None)) is not None:
                stack.callback(setattr, module, name, found)
                setattr(module, name, wrapped(found))
        yield left_out


def _headers_once(
    load: Callable[..., dict[str, Any]], left_out: list[str]
) -> Callable[..., dict[str, Any]]:
    """``load_gguf_checkpoint`` that keeps what it returns without tensors."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    kept = cache(load)

    def loaded(file: Any, return_tensors: bool = False, **options: Any) -> dict[str, Any]:  # noqa: FBT002 - the signature of transformers
        if return_tensors:
            known = reading.get_gguf_hf_weights_map(
                options["model_to_load"], reading.TensorProcessor()
            )
            names = [tensor.name for tensor in gguf.GGUFReader(file).tensors]
            left_out.extend(name for name in names if name not in known)
            return load(file, return_tensors=True, **options)
        # its callers change what they get
        return copy.deepcopy(kept(file, **options))

    return loaded
