"""The Model contract: head ∘ featurizer, with all trainable parameters in one flat vector.

An update is a vector and a cohort's updates are a matrix, so aggregation is linear algebra. Floating-point buffers
(BatchNorm's running statistics) live in a second vector that travels apart from the parameters.

    model = build_model(ModelSpec(input_shape=(1, 8, 8), outputs=10), seed=0)
    loss = F.cross_entropy(model(x), y)
    model.backward(loss)                               # fills model.gradient
    model.vector.add_(model.gradient, alpha=-0.1)      # one SGD step, in place
    model.vector[model.layout.head]                    # the head's part of the vector
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional as F

from farfield.models.featurizers import builder_of
from farfield.models.spec import ModelSpec
from farfield.reproducibility.devices import CPU
from farfield.reproducibility.randomness import derive_seed

#: Below this a standard deviation's logarithm is of no use to anyone.
SIGMA_FLOOR = 1e-6
BATCH_NORM_MOMENTUM = 0.1


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the flat vector. The head comes last, so it is one slice."""

    slices: dict[str, slice]
    shapes: dict[str, torch.Size]
    head: slice
    #: The layer that gives the logits: the whole of a linear head, the last layer of an MLP head.
    final: slice
    parameters: int
    buffers: int
    features: int
    outputs: int


@dataclass(frozen=True)
class ModelState:
    """A model's numbers without its code: what a server holds and broadcasts."""

    parameters: Tensor
    buffers: Tensor

    def sha256(self) -> str:
        return hash_states([self])

    @property
    def nbytes(self) -> int:
        return self.parameters.nbytes + self.buffers.nbytes


def hash_states(states: Iterable[ModelState]) -> str:
    """The hash of parameters and buffers, byte by byte, of one model or of several in order."""
    digest = hashlib.sha256()
    for state in states:
        for tensor in (state.parameters, state.buffers):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _gradients(outputs: Tensor, by_outputs: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """`torch.autograd.grad`, flat, with zeros for parameters that are not in the graph.

    By the engine's own entrance: on small models what `grad` does around it takes as long as the derivatives, and given
    a gradient of the outputs it imports torch's symbolic shapes, a second for every process.
    """
    grads = _engine_run_backward(
        (outputs,), (by_outputs,), False, False, tuple(parameters), allow_unreachable=True, accumulate_grad=False
    )
    return [
        parameter.new_zeros(parameter.numel()) if grad is None else grad.reshape(-1)
        for parameter, grad in zip(parameters, grads, strict=True)
    ]


class Head(nn.Sequential):
    """Linear, or linear-ReLU-linear. `last` is the layer that gives the logits."""

    def __init__(self, features: int, spec: ModelSpec) -> None:
        hidden = [] if spec.head == "linear" else [nn.Linear(features, spec.head_hidden), nn.ReLU()]
        width = features if spec.head == "linear" else spec.head_hidden
        super().__init__(*hidden, nn.Linear(width, spec.outputs, bias=spec.head_bias))

    @property
    def last(self) -> nn.Linear:
        layer = self[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def before_last(self, features: Tensor) -> Tensor:
        """What the last layer sees: the features themselves for a linear head."""
        for layer in list(self)[:-1]:
            features = layer(features)
        return features


def head_logits(layout: Layout, heads: Tensor, features: Tensor) -> Tensor:
    """Logits [head, row, output] of several heads on the same features.

    Each head is a row of `heads`, flat as in `vector[layout.head]`: how a server runs the heads that clients sent.
    """
    x = features.expand(len(heads), *features.shape)
    names = [name for name in layout.slices if name.startswith("head.")]
    for position, name in enumerate(names):
        where, shape = layout.slices[name], layout.shapes[name]
        part = heads[:, where.start - layout.head.start : where.stop - layout.head.start]
        if name.endswith("weight"):
            x = x if position == 0 else x.relu()
            x = x @ part.view(-1, *shape).transpose(1, 2)
        else:
            x = x + part.unsqueeze(1)
    return x


class Model(nn.Module):
    """`model(x)` gives logits; `model.features(x)` what the head sees. Parameters are views of `model.vector`."""

    vector: Tensor
    gradient: Tensor
    buffer_vector: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        #: The mode that `train` has last set; None where it is neither of the two.
        self._mode: bool | None = None
        self.spec = spec
        features = self._make_layers(spec)
        if spec.init == "xavier":
            self._start_as_xavier()
        if spec.head_init == "kaiming":
            self._start_head_as_kaiming()
        self.layout = self._flatten(features)

    def _make_layers(self, spec: ModelSpec) -> int:
        """Make featurizer, Gaussian and head; return how many features the head sees."""
        self.featurizer, features = builder_of(spec.featurizer)(spec)
        self.gaussian = nn.Linear(features, 2 * features) if spec.representation == "gaussian" else None
        self.head = Head(features, spec)
        return features

    def _start_as_xavier(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def _start_head_as_kaiming(self) -> None:
        """Weights from N(0, 2/inputs), as FedIIR's published code starts its classifier; biases as they are."""
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")

    def _flatten(self, features: int) -> Layout:
        named = list(self.named_parameters())
        assert all(p.dtype == torch.get_default_dtype() for _, p in named)
        sizes = [p.numel() for _, p in named]
        vector = torch.cat([p.detach().reshape(-1) for _, p in named]) if named else torch.zeros(0)
        slices: dict[str, slice] = {}
        start = 0
        for (name, p), size in zip(named, sizes, strict=True):
            slices[name] = slice(start, start + size)
            p.data = vector[start : start + size].view(p.shape)
            start += size
        head = [s for name, s in slices.items() if name.startswith("head.")]
        self._trainable = [p for _, p in named]
        final = {id(p) for p in self.head.last.parameters()}
        self._body = [p for _, p in named if id(p) not in final]
        # Plain attributes, not registered buffers: state_dict() would otherwise carry every number twice.
        object.__setattr__(self, "vector", vector)
        object.__setattr__(self, "gradient", torch.zeros_like(vector))
        object.__setattr__(self, "buffer_vector", self._flatten_buffers())
        return Layout(
            slices=slices,
            shapes={name: p.shape for name, p in named},
            head=slice(head[0].start, head[-1].stop),
            final=slice(head[-1].stop - sum(p.numel() for p in self.head.last.parameters()), head[-1].stop),
            parameters=start,
            buffers=self.buffer_vector.numel(),
            features=features,
            outputs=self.spec.outputs,
        )

    def _running_statistics(self) -> list[tuple[nn.Module, str]]:
        """The buffers that change and travel, each by its layer and its name in it.

        num_batches_tracked is an integer count that no norm policy here reads, and a library's networks keep constants
        in buffers (position tables): these stay where they are.
        """
        return [
            (layer, name)
            for layer in self.modules()
            for name, buffer in layer.named_buffers(recurse=False)
            if buffer.is_floating_point() and name.startswith("running_")
        ]

    def _flatten_buffers(self) -> Tensor:
        floating = self._running_statistics()
        tensors = [getattr(m, n) for m, n in floating]
        vector = torch.cat([t.reshape(-1) for t in tensors]) if tensors else torch.zeros(0)
        start = 0
        for (module, name), tensor in zip(floating, tensors, strict=True):
            module._buffers[name] = vector[start : start + tensor.numel()].view(tensor.shape)
            start += tensor.numel()
        return vector

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: the features; for a Gaussian representation a sample in training, the mean otherwise."""
        if self.gaussian is None:
            return self._through(x, self.featurizer)
        return self.draw(*self.represent(x))

    def _through(self, x: Tensor, *layers: nn.Module) -> Tensor:
        """What comes out of the layers below the head, which compute in the model's precision; in float32."""
        if self.spec.precision == "float32":
            for layer in layers:
                x = layer(x)
            return x
        with torch.autocast(x.device.type, torch.bfloat16):
            for layer in layers:
                x = layer(x)
        return x.to(self.vector.dtype)

    def draw(self, mu: Tensor, sigma: Tensor) -> Tensor:
        """A sample of a Gaussian representation in training (reparameterised: gradients reach μ and σ), else μ."""
        return mu + sigma * self.normal(sigma) if self.training else mu

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal numbers, as many as the tensor has, from the random numbers of the client.

        They are drawn on the CPU, so that they are the same on every device.
        """
        return torch.randn_like(like, device=CPU).to(like.device)

    def integers(self, below: int, like: Tensor) -> Tensor:
        """Whole numbers from 0, as many as the tensor has, from the random numbers of the client."""
        return torch.randint(below, like.shape).to(like.device)

    def predict(self, x: Tensor) -> Tensor:
        """Logits for whoever measures or uses the model.

        With `test_samples` n, a Gaussian representation is sampled n times and the predicted probabilities are
        averaged; what is returned are logits of that mean. The samples come from torch's global generator.
        """
        n = self.spec.test_samples
        if self.gaussian is None or not n:
            return self(x)  # type: ignore[no-any-return]
        mu, sigma = self.represent(x)
        logits = self.head(mu + sigma * torch.randn((n, *mu.shape), dtype=mu.dtype).to(mu.device))
        if self.layout.outputs > 1:
            return logits.log_softmax(-1).logsumexp(0) - math.log(n)  # type: ignore[no-any-return]
        # log of the odds of the mean probability; the 1/n of both means cancels.
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)

    def represent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of a Gaussian representation."""
        if self.gaussian is None:
            raise ValueError("this model has a plain representation; build it with representation='gaussian'")
        mu, raw = self._through(x, self.featurizer, self.gaussian).chunk(2, dim=-1)
        return mu, F.softplus(raw) + SIGMA_FLOOR

    def backward(self, loss: Tensor) -> None:
        """Put the gradient of `loss` into `model.gradient` (overwriting what was there)."""
        if loss.numel() != 1:
            raise ValueError(f"the loss has shape {tuple(loss.shape)}, and a gradient is of one number: take its mean")
        torch.cat(_gradients(loss, torch.ones_like(loss), self._trainable), out=self.gradient)

    def backward_from(self, inputs: Tensor, by_inputs: Tensor, by_final: Tensor) -> None:
        """As `backward`, for a loss whose derivatives by the final layer and by what goes into it are known already."""
        body = _gradients(inputs, by_inputs.to(inputs.dtype), self._body) if self._body else []
        torch.cat([*body, by_final.to(inputs.dtype)], out=self.gradient)

    def head_gradient(self, loss: Tensor) -> Tensor:
        """The gradient of `loss` by the head's parameters, flat."""
        return torch.cat(_gradients(loss, torch.ones_like(loss), list(self.head.parameters())))

    def load(self, state: ModelState) -> None:
        self.vector.copy_(state.parameters)
        if self.layout.buffers:
            self.buffer_vector.copy_(state.buffers)

    def state(self) -> ModelState:
        """A copy of the model's numbers, on the CPU wherever the model is."""
        return ModelState(self.vector.to(CPU, copy=True), self.buffer_vector.to(CPU, copy=True))

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.vector.device

    def on(self, device: torch.device) -> Model:
        """Move the model to a device and return it. Its numbers, its layout and its being one vector stay."""
        if self.vector.device == device:
            return self
        vector, names = self.vector.to(device), {id(p): name for name, p in self.named_parameters()}
        moved = {name: nn.Parameter(vector[s].view(self.layout.shapes[name])) for name, s in self.layout.slices.items()}
        for module in self.modules():
            for own, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[own] = moved[names[id(parameter)]]
        self.to(device)  # the rest, which is buffers: parameters are there already
        self._trainable = list(moved.values())
        self._body = self._trainable[: len(self._body)]
        object.__setattr__(self, "vector", vector)
        object.__setattr__(self, "gradient", torch.zeros_like(vector))
        object.__setattr__(self, "buffer_vector", self._flatten_buffers().to(device))
        return self

    def train(self, mode: bool = True) -> Model:
        if mode is self._mode:  # every phase asks for its mode, and walking through all modules is not free
            return self
        super().train(mode)
        for layer in self._batch_norms():
            layer.momentum = BATCH_NORM_MOMENTUM
            layer.train(mode and self.spec.norm != "freeze")
        self._mode = mode
        return self

    def eval_unseen(self) -> Model:
        """Evaluation mode for a client that took no part: see the norm policy for which statistics it uses."""
        self.eval()
        if self.spec.norm == "local":
            self._mode = None
            for layer in self._batch_norms():
                layer.train()
                layer.momentum = 0.0  # normalise by the batch, leave the stored statistics alone
        return self

    def _batch_norms(self) -> list[nn.modules.batchnorm._BatchNorm]:
        return [m for m in self.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def count_numbers(spec: ModelSpec) -> tuple[int, int]:
    """Return how many parameters and how many buffers a model has, without a byte for them.

    Its layers alone are made: laying out their parameters on the device without memory would import torch's compiler,
    which takes seconds.
    """
    layers = Model.__new__(Model)
    nn.Module.__init__(layers)
    with torch.device("meta"):
        layers._make_layers(spec.model_copy(update={"weights": "none"}))
    buffers = sum(getattr(layer, name).numel() for layer, name in layers._running_statistics())
    return sum(p.numel() for p in layers.parameters()), buffers


def build_model(spec: ModelSpec, seed: int) -> Model:
    """The model with the initial weights that belong to `seed`, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        return Model(spec)
