"""Fn: a module made of one function, for tests."""

from torch import nn


class Fn(nn.Module):
    """Runs one function of itself and its input; whatever else is given becomes an attribute."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)
