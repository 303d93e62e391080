"""Generative models: autoencoders, adversarial pairs, a flow, a denoiser, a codebook, masked convolutions."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case
from .convs import random_input


@zoo_case("autoencoder", random_input(1, 8, 8))
class Autoencoder(nn.Module):
    """Squeezes an image through four numbers; returns the reconstruction and the code in a dict."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 64), nn.Sigmoid())

    def forward(self, image):
        code = self.encoder(image)
        return {"reconstruction": self.decoder(code).unflatten(1, (1, 8, 8)), "code": code}


@zoo_case("variational_autoencoder", random_input(20), "random")
class VariationalAutoencoder(nn.Module):
    """Samples its code in training and uses the mean in eval."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(20, 32)
        self.to_mu = nn.Linear(32, 4)
        self.to_logvar = nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))

    def reparameterise(self, mu, logvar):
        if not self.training:
            return mu
        return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)

    def forward(self, x):
        hidden = F.relu(self.encoder(x))
        mu, logvar = self.to_mu(hidden), self.to_logvar(hidden)
        return self.decoder(self.reparameterise(mu, logvar)), mu, logvar


def initialise_gan_weights(module: nn.Module):
    """The usual start of a DCGAN: small normal weights, scales near one."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


@zoo_case("gan_generator", random_input(10, 1, 1))
def generator():
    """Grows an image out of noise with transposed convolutions and batch norm."""
    model = nn.Sequential(
        nn.ConvTranspose2d(10, 12, 4, 1, 0, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(True),
        nn.ConvTranspose2d(12, 6, 4, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(True),
        nn.ConvTranspose2d(6, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    return model.apply(initialise_gan_weights)


@zoo_case("gan_discriminator", random_input(1, 16, 16))
def discriminator():
    """Judges an image with strided convolutions and leaky ReLU."""
    model = nn.Sequential(
        nn.Conv2d(1, 6, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(6, 12, 4, 2, 1, bias=False),
        nn.BatchNorm2d(12),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(12, 1, 4, 1, 0, bias=False),
        nn.Flatten(0),
    )
    return model.apply(initialise_gan_weights)


@zoo_case("gan_pair", lambda batch: ((torch.randn(batch, 10, 1, 1), torch.randn(batch, 1, 16, 16)), {}))
class GanPair(nn.Module):
    """Generator and discriminator in one module; the discriminator judges both real and made images."""

    def __init__(self):
        super().__init__()
        self.generator = generator()
        self.discriminator = discriminator()

    def forward(self, noise, real):
        fake = self.generator(noise)
        scores = {"real": self.discriminator(real), "fake": self.discriminator(fake.detach())}
        scores["generator"] = self.discriminator(fake)
        return fake, scores


@zoo_case("coupling_flow", random_input(6))
class CouplingFlow(nn.Module):
    """Affine coupling layers with fixed shuffles between; returns the latent and the log-determinant."""

    def __init__(self):
        super().__init__()
        nets = [nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(3)]
        self.nets = nn.ModuleList(nets)
        self.register_buffer("shuffle", torch.tensor([3, 0, 4, 1, 5, 2]))

    def forward(self, x):
        logdet = x.new_zeros(x.shape[0])
        for net in self.nets:
            kept, moved = x.split(3, dim=1)
            log_scale, shift = net(kept).chunk(2, dim=1)
            log_scale = torch.tanh(log_scale)
            x = torch.cat([kept, moved * log_scale.exp() + shift], dim=1)[:, self.shuffle]
            logdet = logdet + log_scale.sum(dim=1)
        return x, logdet


def noisy_images(batch: int):
    """Images with the diffusion step each of them is at."""
    return (torch.randn(batch, 3, 8, 8),), {"timesteps": torch.randint(0, 1000, (batch,))}


@zoo_case("diffusion_denoiser", noisy_images)
class Denoiser(nn.Module):
    """Predicts the noise in an image, told the time by a sinusoidal embedding that scales and shifts."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.width = width
        self.time_mlp = nn.Sequential(nn.Linear(width, 24), nn.SiLU(), nn.Linear(24, 2 * width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def embed_time(self, timesteps, dtype):
        half = self.width // 2
        steps = torch.arange(half, device=timesteps.device, dtype=dtype)
        frequencies = torch.exp(-math.log(10000.0) * steps / half)
        angles = timesteps[:, None].to(dtype) * frequencies[None]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, image, timesteps):
        scale, shift = self.time_mlp(self.embed_time(timesteps, image.dtype))[:, :, None, None].chunk(
            2, dim=1
        )
        hidden = self.norm(self.enter(image)) * (1 + scale) + shift
        return image - self.leave(F.silu(hidden))


@zoo_case("vector_quantiser", random_input(6, 8))
class VectorQuantiser(nn.Module):
    """Replaces every code by its nearest codebook entry, passing the gradient straight through."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.codebook = nn.Embedding(16, 4)
        self.decoder = nn.Linear(4, 8)

    def forward(self, x):
        codes = self.encoder(x)
        distances = torch.cdist(codes.reshape(-1, 4), self.codebook.weight)
        indices = distances.argmin(dim=-1).view(codes.shape[:-1])
        nearest = self.codebook(indices)
        commitment = (codes - nearest.detach()).pow(2).mean(dim=(1, 2))
        codebook_gap = (nearest - codes.detach()).pow(2).mean(dim=(1, 2))
        straight_through = codes + (nearest - codes).detach()
        return self.decoder(straight_through), indices, codebook_gap + 0.25 * commitment


class MaskedConv2d(nn.Conv2d):
    """Sees only the pixels before this one (kind A), or also this one (kind B)."""

    def __init__(self, kind: str, *args, **kwargs):
        super().__init__(*args, **kwargs)
        mask = torch.ones_like(self.weight)
        rows, columns = self.kernel_size
        mask[:, :, rows // 2, columns // 2 + (kind == "B") :] = 0
        mask[:, :, rows // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self._conv_forward(x, self.weight * self.mask, self.bias)


@zoo_case("pixel_cnn", random_input(1, 8, 8))
def pixel_cnn():
    """Masked convolutions that predict each pixel from the ones above and left of it."""
    first, second = MaskedConv2d("A", 1, 8, 5, padding=2), MaskedConv2d("B", 8, 8, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(8, 4, 1))
