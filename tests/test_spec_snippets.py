"""The quick starts of WideCompiler's own documents, as they stand there."""

import pytest
import torch

FIRST = """
import torch
import wide_compiler

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(64, 128)
        self.fc2 = torch.nn.Linear(128, 64)
    def forward(self, x):
        return self.fc2(torch.nn.functional.relu(self.fc1(x)))

models = [MLP() for _ in range(10)]
sample = torch.randn(1, 64)
wide = wide_compiler.compile(models, sample)
print(wide.summary())
"""

SECOND = """
import torch
import wide_compiler

# Define your model
class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(64, 128)
        self.fc2 = torch.nn.Linear(128, 64)
    
    def forward(self, x):
        return self.fc2(torch.nn.functional.relu(self.fc1(x)))

# Create N models
models = [MLP().cuda() for _ in range(100)]
sample = torch.randn(1, 64).cuda()

# Compile to Wide model
wide = wide_compiler.compile(models, sample)

# Pack inputs and run
inputs = [torch.randn(32, 64).cuda() for _ in range(100)]
packed = wide_compiler.pack(inputs)
output = wide(packed)

# Unpack outputs
outputs = wide_compiler.unpack(output, n=100)
"""

ENTRY_POINTS = """
import wide_compiler

# From list of models
wide = wide_compiler.compile(models, sample_input)

# From single model (creates N copies with different weights)
wide = wide_compiler.compile(MyModel(), sample_input, n=100)

# With torch.compile enabled
wide = wide_compiler.compile(models, sample_input, compile_model=True)

# With validation
wide = wide_compiler.compile(models, sample_input, validate=True)

# With config
config = wide_compiler.WideConfig.fast()
wide = wide_compiler.compile(models, sample_input, config=config)
"""

BUILDER = """
wide = (wide_compiler.WideBuilder(models)
    .with_sample(sample_input)
    .validate()
    .compile(mode='reduce-overhead')
    .build())
"""

CONFIG = """
from wide_compiler import WideConfig

# Presets
config = WideConfig.default()   # Basic, no compile
config = WideConfig.fast()      # Compiled, no validation
config = WideConfig.debug()     # Verbose, strict
config = WideConfig.safe()      # With validation

# Custom
config = WideConfig(
    compile=True,
    compile_mode='reduce-overhead',  # 'default', 'max-autotune'
    validate=True,
    validate_rtol=1e-3,
    debug=True,
)
"""

CUSTOM = """
@wide_compiler.register('MyOp')
class WideMyOp:
    @classmethod
    def from_modules(cls, modules): ...
"""


@pytest.fixture
def cuda_or_stay(monkeypatch):
    """Without a GPU `.cuda()` leaves things where they are; the snippet itself stays to the letter."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
        monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)


def test_quick_test_of_the_first_document(capsys):
    exec(FIRST, names := {})
    printed = capsys.readouterr().out
    assert "10 lanes of MLP" in printed and "(10, 128, 64)" in printed
    assert isinstance(names["wide"], names["wide_compiler"].TracedWideModel)


def test_quick_start_of_the_second_document(cuda_or_stay):
    exec(SECOND, names := {})
    assert len(names["outputs"]) == 100
    for model, x, out in zip(names["models"], names["inputs"], names["outputs"], strict=True):
        torch.testing.assert_close(out, model(x), rtol=1e-4, atol=1e-5)


def test_every_entry_point():
    names = {"sample_input": torch.randn(1, 4), "MyModel": lambda: torch.nn.Linear(4, 2)}
    names["models"] = [torch.nn.Linear(4, 2) for _ in range(3)]
    exec(ENTRY_POINTS, names)
    x = torch.randn(5, 4)
    expected = torch.stack([m(x) for m in names["models"]])
    torch.testing.assert_close(names["wide"].shared(x), expected)
    assert names["wide"].config.compile


def test_builder():
    import wide_compiler

    names = {"wide_compiler": wide_compiler, "sample_input": torch.randn(2, 4)}
    names["models"] = [torch.nn.Linear(4, 2) for _ in range(3)]
    exec(BUILDER, names)
    x = torch.randn(2, 4)
    torch.testing.assert_close(names["wide"].shared(x), torch.stack([m(x) for m in names["models"]]))
    assert names["wide"].config.compile_mode == "reduce-overhead"


def test_configuration():
    exec(CONFIG, names := {})
    config = names["config"]
    assert config.compile and config.validate and config.verbose and config.validate_rtol == 1e-3


def test_custom_registration():
    import wide_compiler

    exec(CUSTOM, names := {"wide_compiler": wide_compiler})
    try:
        assert wide_compiler.REGISTRY.get("MyOp") is names["WideMyOp"]
    finally:
        wide_compiler.REGISTRY.unregister("MyOp")


def test_from_models_is_the_same_road():
    from wide_compiler import TracedWideModel

    models = [torch.nn.Linear(4, 2) for _ in range(3)]
    wide = TracedWideModel.from_models(models, torch.randn(1, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in models]))


def test_names_of_the_first_document():
    import wide_compiler

    models, x = [torch.nn.Linear(4, 2) for _ in range(3)], torch.randn(1, 4)
    wide = wide_compiler.compile(models, sample_input=x)
    assert wide.shared(torch.ones(5, 4)).shape == (3, 5, 2)
    with pytest.raises(ValueError, match="another name for sample"):
        wide_compiler.compile(models, x, sample_input=x)
    assert wide_compiler.VERSION == wide_compiler.__version__ == "0.5.0"
    builders = wide_compiler.auto_register_primitives()
    assert builders["Linear"] is wide_compiler.WideLinear
    assert builders == wide_compiler.auto_register_primitives() == wide_compiler.REGISTRY.listing()
