"""The forward pass of Hugging Face's Switch Transformers in NumPy: what an export means, computed without the code that
wrote it.

It follows the paper (arXiv:2101.03961) token by token, from Hugging Face's tensors, and shares nothing with Limba's
network or table of names. For checks, not for speed; see `numpy_t5`.
"""

import functools

import numpy as np

from limba.convert.compare import numpy_t5
from limba.convert.compare.float64 import product
from limba.convert.compare.numpy_t5 import Array


class _Network(numpy_t5.Network):
    def feed_forward(self, module: str, x: Array) -> Array:
        module = module.replace("DenseReluDense", "mlp")
        router = f"{module}.router.classifier"
        if not self.weights.has_embedding(router):
            return super().feed_forward(module, x)
        logits = product(x, self.weights.kernel(router))
        if self.config["router_bias"]:
            logits = logits + self.weights.bias(router)
        logits = self.rounding(logits)
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        confidence = exponentials.max(-1) / exponentials.sum(-1)
        choice, update = logits.argmax(-1), np.zeros_like(x)
        for expert in np.unique(choice):
            for row in range(len(x)):
                taken = np.flatnonzero(choice[row] == expert)[: self.config["expert_capacity"]]
                if len(taken):
                    own = super().feed_forward(f"{module}.experts.expert_{expert}", x[row : row + 1, taken])
                    update[row, taken] = own[0] * confidence[row, taken, None]
        return self.rounding(update)


logits = functools.partial(numpy_t5.logits, network_class=_Network)
