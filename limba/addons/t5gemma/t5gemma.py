"""T5Gemma (arXiv:2504.06225): encoder and decoder of Gemma 2's layers, each with a configuration of its own."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from limba.addons.t5gemma import t5gemma_keys
from limba.convert.families.config_keys.keys import Table
from limba.convert.families.encoders import rotary_keys
from limba.convert.families.t5_family import T5Family
from limba.convert.tensors.table import Row
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.files.untrusted_files import cut, shown
from limba.network import config_checks
from limba.network.gemma_layers import GemmaLayers
from limba.network.t5 import T5Config

_STACKS = ("encoder", "decoder")
_FULL, _SLIDING = "full_attention", "sliding_attention"
# T5's names of what a stack's configuration says under others.
_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "num_heads": "num_attention_heads",
    "d_kv": "head_dim",
}
# Of `GemmaLayers`: under other names, under Hugging Face's, and those that a family has at one value.
_OF_LAYERS = {"num_kv_heads": "num_key_value_heads", "norm_epsilon": "rms_norm_eps"}
_SAME_NAME = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window")
_OF_FAMILY = ("merged_attention", "qk_norm", "shared_embedding", "halved_encoder_window")
_ACTIVATIONS = {"gelu_pytorch_tanh": "gated-gelu", "gelu_new": "gated-gelu", "silu": "gated-silu", "relu": "gated-relu"}
# What the class takes for keys that a stack leaves out, which those are that have these values.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
# null turns these off; of others it counts as missing.
_OR_NONE = ("final_logit_softcapping", "attn_logit_softcapping")
_MAY_DIFFER = (
    "num_hidden_layers",
    "layer_types",
    "is_decoder",
    "final_logit_softcapping",
    "model_type",
    "architectures",
)
_SPECIAL_IDS = {
    "pad_token_id": "pad_token_id",
    "eos_token_id": "eos_token_id",
    "decoder_start_token_id": "bos_token_id",
}


# A list of the kinds of all layers is made before there is a network, which would refuse more.
_DEPTH = AT_LEAST_1._replace(below=config_checks.MOST_LAYERS + 1)
# Of the keys of a stack that are no numbers: files of strangers may have anything there.
_KINDS_OF_VALUES = (
    ("hidden_activation", str, "a name"),
    ("layer_types", list, "a list"),
    ("rope_scaling", Mapping, "an object"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5GemmaFamily(T5Family):
    """See `T5Family`. Inside Limba its config.json has T5's keys, and "gemma_layers" with the fields of that class.

    Attributes:
      stack_keys, stack_defaults: `keys` and `defaults` of the configuration of a stack.
      stack_types: `model_type` of the encoder's and of the decoder's.
      usual_period: `global_attention_every` of a file that does not say it.
      layers: fields of `GemmaLayers` that differ from their defaults in every model of the family.
    """

    layer_kind: ClassVar[str] = "gemma"
    numpy_forward: ClassVar[str] = "limba.addons.t5gemma.numpy_t5gemma"
    torch_attention: ClassVar[str | None] = "eager"  # the one that has soft caps
    stack_keys: Table
    stack_defaults: Mapping[str, Any] = dataclasses.field(default_factory=lambda: DEFAULTS)
    stack_types: tuple[str, str] = ("t5_gemma_module", "t5_gemma_module")
    usual_period: int = 2
    layers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def stacks(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The configurations of encoder and decoder, by where they are in config.json, as far as they are there."""
        return {stack: content.get(stack) for stack in _STACKS}

    def rotary_fields(self, file: Path, stack: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `GemmaLayers` for rotary positions. Raises ValueError for those of another kind."""
        return {"rotary_base": rotary_keys.base(stack, 10_000.0)}

    def rotary_settings(self, layers: GemmaLayers) -> dict[str, Any]:
        """The keys of a stack for rotary positions."""
        return rotary_keys.settings(layers.rotary_base)

    def key_tables(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Table]]:
        yield "", content, self.keys
        for stack, inside in self.stacks(content).items():
            if isinstance(inside, Mapping):
                yield f": {stack}", inside, self.stack_keys

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Any = ()) -> dict[str, Any]:
        found = str((content.get("architectures") or [self.model_class])[0])
        if not found.endswith(self.usual_head.kind):
            raise ValueError(f"{file}: architectures is {cut(found)}; convert the whole model, a {self.model_class}.")
        encoder, decoder = (self._stack(file, name, given) for name, given in self.stacks(content).items())
        for key in dict.fromkeys([*encoder, *decoder]):
            of_both = encoder.get(key), decoder.get(key)
            if of_both[0] != of_both[1] and self.stack_keys[key].is_carried and key not in _MAY_DIFFER:
                raise ValueError(
                    f"{file}: {key} is {shown(of_both[0])} in encoder and {shown(of_both[1])} in decoder. Limba's "
                    "stacks may differ in their depths alone; take a model whose two are of one size."
                )
        activation = decoder["hidden_activation"]
        if activation not in _ACTIVATIONS:
            raise ValueError(f"{file}: hidden_activation is {shown(activation)}; Limba has {', '.join(_ACTIVATIONS)}.")
        window = self._window(file, encoder, decoder)
        try:
            layers = GemmaLayers(
                **{field: decoder[key] for field, key in _OF_LAYERS.items()},
                **{key: decoder[key] for key in _SAME_NAME if key != "sliding_window"},
                **self.rotary_fields(file, decoder),
                **self.layers,
                **window,
            )
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        return {
            "tie_word_embeddings": True,
            "dropout_rate": 0.0,
            **{key: value for key, value in content.items() if key not in (*_STACKS, *ignored)},
            **{name: decoder[key] for name, key in _SIZES.items()},
            **{name: content.get(name, decoder[key]) for name, key in _SPECIAL_IDS.items()},
            "num_layers": encoder["num_hidden_layers"],
            "num_decoder_layers": decoder["num_hidden_layers"],
            "feed_forward_proj": _ACTIVATIONS[activation],
            "gemma_layers": dataclasses.asdict(layers),
        }

    def with_own_keys(self, content: Mapping[str, Any]) -> dict[str, Any]:
        layers = GemmaLayers(**content["gemma_layers"])
        activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
        rates = {"dropout_rate": content["dropout_rate"], "attention_dropout": content["dropout_rate"]}
        ids = {key: content[name] for name, key in _SPECIAL_IDS.items()}
        stack = {
            **{key: content[name] for name, key in _SIZES.items()},
            **{key: getattr(layers, field) for field, key in _OF_LAYERS.items()},
            **{key: getattr(layers, key) for key in _SAME_NAME},
            **self.rotary_settings(layers),
            **rates,
            **ids,
            "num_key_value_heads": layers.num_kv_heads or content["num_heads"],
            "hidden_activation": activations[content["feed_forward_proj"]],
            "query_pre_attn_scalar": _whole(layers.query_pre_attn_scalar or content["d_kv"]),
            # The class makes the mask of local layers in any case.
            "sliding_window": layers.sliding_window or DEFAULTS["sliding_window"],
            "attention_bias": False,
            "tie_word_embeddings": content["tie_word_embeddings"],
        }
        names = ("architectures", "model_type", "is_encoder_decoder", "use_cache", "vocab_size", "tie_word_embeddings")
        return {
            **{name: content[name] for name in (*names, "torch_dtype") if name in content},
            **rates,
            **ids,
            "decoder_start_token_id": content["decoder_start_token_id"],
            **self.own_stacks(
                stack | {"model_type": self.stack_types[0]} | _depth(content["num_layers"], layers),
                stack | {"model_type": self.stack_types[1]} | _depth(content["num_decoder_layers"], layers),
            ),
        }

    def own_stacks(self, encoder: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
        """The keys of config.json for the configurations of the stacks."""
        of_decoder = {"is_decoder": True, "cross_attention_hidden_size": encoder["hidden_size"]}
        return {"encoder": encoder | {"is_decoder": False}, "decoder": decoder | of_decoder}

    def has_layers_of(self, network: T5Config) -> bool:
        is_merged = bool(network.gemma_layers and network.gemma_layers.merged_attention)
        return super().has_layers_of(network) and is_merged == self.layers.get("merged_attention", False)

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> T5Config:
        return T5Config(**fields, gemma_layers=GemmaLayers(**content["gemma_layers"]))

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        layers: Any = network.gemma_layers
        return {"gemma_layers": dataclasses.asdict(layers)}

    def problem(self, network: T5Config) -> str:
        layers: Any = network.gemma_layers
        layers = layers.explicit(network)
        wanted = {field: self.layers.get(field, False) for field in _OF_FAMILY}
        if layers.sliding_window is None:
            del wanted["halved_encoder_window"]
        for field, usual in wanted.items():
            if getattr(layers, field) != usual:
                return f"gemma_layers.{field} is {not usual}, and in {self.title} it is {usual}"
        if network.emb_dim % network.num_heads:
            return (
                f"emb_dim is {network.emb_dim}, and in {self.title} transformers 5 wants a multiple of num_heads, "
                f"{network.num_heads}"
            )
        return self.further_problem(network, layers)

    def further_problem(self, network: T5Config, layers: GemmaLayers) -> str:
        """See `problem`; `layers` are explicit."""
        if layers.local_rotary_base != layers.rotary_base or layers.rotary_factor != 1.0:
            return "its gemma_layers have local_rotary_base or rotary_factor, which T5Gemma 2 alone has"
        if network.decoder_start_token_id == 0:
            return (
                "its decoder begins with padding (decoder_start_token_id = 0), which T5Gemma's class hides from the "
                "decoder in training; train with another one, such as EOS (gin/models/t5_modern)"
            )
        return ""

    def usual_start(self, content: Mapping[str, Any]) -> int | None:
        """What the decoder of a config.json begins with where no file says another id."""
        _, decoder = self.stacks(content).values()
        start: int = {**self.stack_defaults, **(decoder if isinstance(decoder, Mapping) else {})}["bos_token_id"]
        return start

    def _stack(self, file: Path, name: str, given: Any) -> dict[str, Any]:
        """The configuration of a stack, with what its class takes for keys that it leaves out."""
        if not isinstance(given, Mapping):
            stack = name.partition(":")[0]
            raise ValueError(
                f"{file}: {name} is {shown(given)}; it is the configuration of {self.title}'s {stack}, an object."
            )
        found = dict(self.stack_defaults) | {key: x for key, x in given.items() if x is not None or key in _OR_NONE}
        number_ranges.check(f"{file}: {name}: num_hidden_layers", found["num_hidden_layers"], _DEPTH)
        for key in ("num_key_value_heads", "sliding_window", *_SIZES.values()):
            number_ranges.check(f"{file}: {name}: {key}", found[key], AT_LEAST_1)
        for key, kind, called in _KINDS_OF_VALUES:
            if found.get(key) is not None and not isinstance(found[key], kind):
                raise ValueError(f"{file}: {name}: {key} is {shown(found[key])}; it is {called}.")
        if (types := found.get("layer_types")) and len(types) != found["num_hidden_layers"]:
            raise ValueError(
                f"{file}: {name}: layer_types has {len(types):,} names and num_hidden_layers is "
                f"{found['num_hidden_layers']}; give as many names as layers, or leave layer_types out."
            )
        if found.get("sliding_window_pattern") is not None:
            number_ranges.check(f"{file}: {name}: sliding_window_pattern", found["sliding_window_pattern"], AT_LEAST_1)
        return found

    def _window(self, file: Path, encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of windows: every how many layers of both stacks one sees the whole row."""
        kinds = []
        for stack in (encoder, decoder):
            usual = _kinds(stack["num_hidden_layers"], stack.get("sliding_window_pattern") or self.usual_period)
            kinds.append(stack.get("layer_types") or usual)
        for every in range(1, max(map(len, kinds)) + 2):
            if all(types == _kinds(len(types), every) for types in kinds):
                window = {"sliding_window": decoder["sliding_window"], "global_attention_every": every}
                return {"sliding_window": None} if every == 1 else window
        raise ValueError(
            f"{file}: layer_types is {shown(kinds[0])} in encoder and {shown(kinds[1])} in decoder. In Limba every "
            f"n-th layer of both has {_FULL}, and the others have {_SLIDING}."
        )


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _kinds(num_layers: int, global_attention_every: int) -> list[str]:
    return [_SLIDING if (i + 1) % global_attention_every else _FULL for i in range(num_layers)]


def _depth(num_layers: int, layers: GemmaLayers) -> dict[str, Any]:
    kinds = [_SLIDING if layers.is_local(i) else _FULL for i in range(num_layers)]
    return {"num_hidden_layers": num_layers, "layer_types": kinds}


def _rows() -> Iterator[Row]:
    yield Row("token_embedder", "model.encoder.embed_tokens")
    yield Row("decoder/token_embedder", "model.decoder.embed_tokens")
    yield Row("decoder/logits_dense", "lm_head.out_proj")
    for stack in _STACKS:
        own, layer = f"{stack}/layers_{{i}}", f"model.{stack}.layers.{{i}}"
        yield Row(f"{stack}/{stack}_norm", f"model.{stack}.norm")
        attention = "attention" if stack == "encoder" else "self_attention"
        blocks = {attention: "self_attn", "cross_attention": "cross_attn", "mlp": "feedforward"}
        for block, theirs in blocks.items():
            for place in ("pre", "post"):
                yield Row(f"{own}/{place}_{block}_layer_norm", f"{layer}.{place}_{theirs}_layernorm")
        for block, theirs in ((attention, "self_attn"), ("encoder_decoder_attention", "cross_attn")):
            for kernel in ("query", "key", "value", "out"):
                yield Row(f"{own}/{block}/{kernel}", f"{layer}.{theirs}.{kernel[0]}_proj")
        for kernel, theirs in (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
            yield Row(f"{own}/mlp/{kernel}", f"{layer}.mlp.{theirs}_proj")


FAMILY = T5GemmaFamily(
    name="t5gemma",
    title="T5Gemma",
    model_type="t5gemma",
    model_class="T5GemmaForConditionalGeneration",
    network={},
    recognized_by="it has gemma_layers",
    in_bytes=None,
    in_transformers=True,
    in_flax=False,
    prefix="model.",
    rows=tuple(_rows()),
    embeddings=("model.encoder.embed_tokens.weight",),
    output=("lm_head.out_proj.weight", "model.decoder.embed_tokens.weight"),
    keys=t5gemma_keys.KEYS,
    stack_keys=t5gemma_keys.STACK_KEYS,
)
