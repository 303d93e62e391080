"""Models with structure of their own: experts, recommenders, hypernetworks, mixtures, routing, sets."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case


def floats(*shapes):
    """Inputs of float tensors [batch, *shape], one for each shape."""
    return lambda batch: (tuple(torch.randn(batch, *shape) for shape in shapes), {})


def ids_and_floats(bound, id_shape, *shapes):
    """Inputs of integer ids below `bound` [batch, *id_shape], then float tensors."""
    return lambda batch: ((torch.randint(0, bound, (batch, *id_shape)), *floats(*shapes)(batch)[0]), {})


def mlp(*sizes):
    """Linear layers with relu between them."""
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@zoo_case("structured_moe_dense_and_topk", floats((4, 8)))
class MixtureOfExperts(nn.Module):
    """A layer that weighs every expert, then one that routes each token to its best two."""

    def __init__(self):
        super().__init__()
        self.dense_gate, self.dense_experts = nn.Linear(8, 3), nn.ModuleList(mlp(8, 16, 8) for _ in range(3))
        self.gate, self.experts = nn.Linear(8, 4, bias=False), nn.ModuleList(mlp(8, 12, 8) for _ in range(4))

    def forward(self, x):
        outputs = torch.stack([expert(x) for expert in self.dense_experts], dim=-2)
        x = x + torch.einsum("bte,bted->btd", self.dense_gate(x).softmax(-1), outputs)
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(self.gate(tokens).softmax(dim=-1), 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        share = torch.zeros(tokens.shape[0], 4, dtype=x.dtype, device=x.device).scatter(1, chosen, weights)
        routed = sum(share[:, i, None] * expert(tokens) for i, expert in enumerate(self.experts))
        load = F.one_hot(chosen, 4).sum(dim=1).to(x.dtype)
        return routed.view_as(x), load.view(x.shape[0], -1, 4)


@zoo_case("structured_dlrm", ids_and_floats(15, (3, 4), (6,)))
class DLRM(nn.Module):
    """Bags of ids summed per table, and the dot products of all pairs."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(15, 8, mode="sum") for _ in range(3))
        self.bottom, self.top = mlp(6, 16, 8), mlp(8 + 6, 16, 1)
        self.register_buffer("pairs", torch.tril_indices(4, 4, offset=-1), persistent=False)

    def forward(self, ids, dense):
        dense = self.bottom(dense)
        vectors = torch.stack([dense, *[table(ids[:, i]) for i, table in enumerate(self.tables)]], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dense, products], dim=1))).squeeze(1)


@zoo_case("structured_bag_offsets", ids_and_floats(20, (5,)))
class BagWithOffsets(nn.Module):
    """Text classifier: an EmbeddingBag with flat ids and offsets, beside padding_idx and a mean by hand."""

    def __init__(self):
        super().__init__()
        self.bag, self.embedding = nn.EmbeddingBag(20, 8, mode="mean"), nn.Embedding(20, 8, padding_idx=0)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        B, T = ids.shape
        bagged = self.bag(ids.reshape(-1), torch.arange(0, B * T, T, device=ids.device))
        lengths = (ids != 0).sum(dim=1, keepdim=True).clamp(min=1)
        return self.head(torch.cat([bagged, self.embedding(ids).sum(dim=1) / lengths], dim=1))


@zoo_case("structured_wide_and_deep", ids_and_floats(30, (2,), (5,)))
class WideAndDeep(nn.Module):
    """Matrix factorisation with biases, a wide crossed feature, and a deep tower."""

    def __init__(self):
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(30, 6), nn.Embedding(30, 6), nn.Embedding(30, 1)
        self.wide, self.deep = nn.Embedding(64, 1), mlp(6 + 6 + 5, 24, 1)

    def forward(self, ids, dense):
        user, item = self.user(ids[:, 0]), self.item(ids[:, 1])
        factorised = (user * item).sum(dim=-1, keepdim=True) + self.bias(ids).sum(dim=1)
        crossed = self.wide((ids[:, 0] * 31 + ids[:, 1]) % 64)
        return (factorised + crossed + self.deep(torch.cat([user, item, dense], dim=-1))).squeeze(-1)


@zoo_case("structured_hypernetwork_film", floats((4, 6), (5,)))
class HyperNetwork(nn.Module):
    """The condition makes the weights of one layer, and the scale and shift of the next (FiLM)."""

    def __init__(self):
        super().__init__()
        self.weights, self.film, self.layer = mlp(5, 16, 6 * 8 + 8), nn.Linear(5, 16), nn.Linear(8, 8)

    def forward(self, x, condition):
        B = x.size(0)
        weight, bias = self.weights(condition).split([48, 8], dim=1)
        x = torch.relu(torch.baddbmm(bias.unsqueeze(1), x, weight.view(B, 6, 8)))
        gamma, beta = self.film(condition)[:, None].chunk(2, dim=-1)
        return (1 + gamma) * self.layer(x) + beta


@zoo_case("structured_siamese_bilinear", floats((10,), (10,)))
class Siamese(nn.Module):
    """One encoder for both sides, compared by cosine, distance and a bilinear form."""

    def __init__(self):
        super().__init__()
        self.encoder, self.bilinear = mlp(10, 24, 8), nn.Bilinear(8, 8, 3)

    def forward(self, left, right):
        left, right = self.encoder(left), self.encoder(right)
        return F.cosine_similarity(left, right), F.pairwise_distance(left, right), self.bilinear(left, right)


@zoo_case("structured_rbf_cdist", floats((5, 4)))
class RBFNetwork(nn.Module):
    """Gaussian bumps around learned centres."""

    def __init__(self):
        super().__init__()
        self.centers, self.log_width = nn.Parameter(torch.randn(12, 4)), nn.Parameter(torch.randn(12) * 0.1)
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        distance = torch.cdist(x, self.centers.expand(x.shape[0], -1, -1))
        return self.head(torch.exp(-((distance / self.log_width.exp()) ** 2)))


@zoo_case("structured_mixture_density", floats((6,), (2,)))
class MixtureDensity(nn.Module):
    """A dict of mixture parameters, and the likelihood of a target under them."""

    def __init__(self):
        super().__init__()
        self.trunk, self.mix, self.gaussians = mlp(6, 24, 24), nn.Linear(24, 3), nn.Linear(24, 3 * 2 * 2)

    def forward(self, x, target):
        h = F.relu(self.trunk(x))
        mean, log_std = self.gaussians(h).view(-1, 3, 2, 2).unbind(dim=-1)
        log_mix = F.log_softmax(self.mix(h), dim=-1)
        log_prob = (-0.5 * ((target[:, None] - mean) / log_std.exp()) ** 2 - log_std).sum(-1)
        return {"mean": mean, "std": log_std.exp(), "nll": -torch.logsumexp(log_mix + log_prob, dim=-1)}


@zoo_case("structured_neural_ode_tied", floats((6,)))
class NeuralODE(nn.Module):
    """Fixed Euler steps of one vector field; one projection is shared by two places."""

    def __init__(self):
        super().__init__()
        self.field, shared = mlp(7, 24, 6), nn.Linear(6, 6)
        self.before, self.after = nn.Sequential(shared, nn.Tanh()), nn.Sequential(nn.LayerNorm(6), shared)

    def forward(self, x, steps=4):
        x = self.before(x)
        for step in range(steps):
            time = torch.full((x.shape[0], 1), step / steps, dtype=x.dtype, device=x.device)
            x = x + self.field(torch.cat([x, time], dim=1)) / steps
        return self.after(x)


@zoo_case("structured_capsule_routing", floats((6, 4)))
class CapsuleRouting(nn.Module):
    """Three rounds of routing by agreement from six capsules to three."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 4, 5) * 0.5)

    def forward(self, x):
        votes = torch.einsum("bid,ijde->bije", x, self.weight)
        logits = torch.zeros(x.shape[0], 6, 3, dtype=x.dtype, device=x.device)
        for _ in range(3):
            capsules = torch.einsum("bij,bije->bje", F.softmax(logits, dim=2), votes)
            squared = capsules.pow(2).sum(dim=-1, keepdim=True)
            capsules = squared / (1 + squared) * capsules / torch.sqrt(squared + 1e-8)
            logits = logits + torch.einsum("bije,bje->bij", votes, capsules)
        return capsules.norm(dim=-1)


@zoo_case("structured_ssm_fft", floats((10, 6)))
class StateSpaceFFT(nn.Module):
    """A decaying kernel, its exponent a cumsum, convolved with the sequence by FFT."""

    def __init__(self):
        super().__init__()
        self.log_decay, self.mixture = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6, 4))
        self.skip, self.out = nn.Parameter(torch.randn(6)), nn.Linear(6, 12)

    def forward(self, u):
        length = u.shape[1]
        decay = F.softplus(self.log_decay)[..., None].expand(-1, -1, length)
        kernel = (self.mixture[..., None] * torch.exp(-torch.cumsum(decay, dim=-1))).sum(dim=1)
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2)
        return F.glu(self.out(F.gelu(y + u * self.skip)), dim=-1)


@zoo_case("structured_deep_sets", floats((7, 5)))
class DeepSets(nn.Module):
    """Sum, maximum and learned attention pooling of a set."""

    def __init__(self):
        super().__init__()
        self.phi, self.rho, self.query = mlp(5, 24, 8), mlp(24, 16, 2), nn.Parameter(torch.randn(8))

    def forward(self, x):
        h = self.phi(x)
        attention = torch.softmax(h @ self.query / h.shape[-1] ** 0.5, dim=1)
        attended = torch.matmul(attention.unsqueeze(1), h).squeeze(1)
        return self.rho(torch.cat([h.sum(dim=1), h.max(dim=1)[0], attended], dim=-1))
