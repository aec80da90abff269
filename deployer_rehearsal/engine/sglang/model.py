"""What the stand-in reads of a model folder: config.json and the names and sizes of the weight files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any


class LaunchError(Exception):
    """The main process fails before any scheduler exists, with this exception in its traceback. Exit status 1."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


@dataclasses.dataclass(frozen=True)
class Model:
    """A model by its folder. ``weight_bytes`` is 0 if the folder holds no weight files."""

    path: str
    architecture: str
    model_type: str
    layers: int
    context: int
    kv_bytes_per_layer: int
    mla: bool
    vision: bool
    shards: int
    weight_bytes: int
    missing: tuple[str, ...] = ()


def read_model(path: str) -> Model:
    """Read the model folder. Raise LaunchError, worded like the model hub's client, for an invalid path."""
    folder = Path(path)
    if not folder.exists():
        raise LaunchError("OSError", _not_there(path))
    config = folder / "config.json"
    if not config.is_file():
        raise LaunchError(
            "OSError",
            f"{path} does not appear to have a file named config.json. "
            f"Checkout 'https://huggingface.co/{path}/tree/main' for available files.",
        )
    try:
        data: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        raise LaunchError("OSError", f"It looks like the config file at '{config}' is not a valid JSON file.") from None
    text: dict[str, Any] = data.get("text_config") or data
    architectures = data.get("architectures") or text.get("architectures") or ["LlamaForCausalLM"]
    mla = bool(text.get("kv_lora_rank"))
    if mla:
        width = int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 64))
    else:
        heads = int(text.get("num_attention_heads", 32))
        size = int(text.get("head_dim") or int(text.get("hidden_size", 4096)) // heads)
        width = 2 * int(text.get("num_key_value_heads", heads)) * size
    names, missing = _weight_files(folder)
    return Model(
        path=path,
        architecture=str(architectures[0]),
        model_type=str(data.get("model_type", "llama")),
        layers=int(text.get("num_hidden_layers", 32)),
        context=int(text.get("max_position_embeddings", 8192)),
        kv_bytes_per_layer=2 * width,
        mla=mla,
        vision="vision_config" in data or "ConditionalGeneration" in str(architectures[0]),
        shards=len(names),
        weight_bytes=sum((folder / name).stat().st_size for name in names if name not in missing),
        missing=tuple(missing),
    )


def _weight_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the weight files, and those in the index that the folder lacks."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        names = sorted(set(weight_map.values()))
        return names, [name for name in names if not (folder / name).exists()]
    return sorted(path.name for path in folder.glob("*.safetensors")), []


def _not_there(path: str) -> str:
    """Return the error of the hub's client for a path that is not a folder: a bad repository id, or no hub."""
    parts = path.split("/")
    if len(parts) <= 2 and all(parts) and not path.startswith("."):
        return (
            "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached "
            "files.\nCheck your internet connection or see how to run the library in offline mode at "
            "'https://huggingface.co/docs/transformers/installation#offline-mode'."
        )
    form = "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"
    return f"{form}: '{path}'. Use `repo_type` argument if needed."
