"""GroupQueryAttention's own preparation of queries and keys, written out."""

import torch


def rotated_heads(args, kwargs):
    """Queries, keys and values ``(batch, sequence, heads * size)``, normalized and rotated as a call asks for."""
    heads, kv_heads = kwargs["num_heads"], kwargs["kv_num_heads"]
    query, key, value = args[:3]
    if key is None:
        size = query.shape[2] // (heads + 2 * kv_heads)
        query, key, value = query.split([heads * size, kv_heads * size, kv_heads * size], 2)
    size, length = query.shape[2] // heads, query.shape[1]
    start = torch.zeros_like(args[5]) if length == args[6] else args[5] + 1 - length
    given = args[9] if len(args) > 9 else None
    positions = start[:, None] + torch.arange(length) if given is None else given
    norms = args[14:16] if len(args) > 14 else (None, None)
    rotated = []
    for x, weight in ((query, norms[0]), (key, norms[1])):
        x = x.unflatten(2, (-1, size))
        if weight is not None:
            x = torch.nn.functional.rms_norm(x, (size,), weight, kwargs.get("qk_norm_epsilon", 1e-6))
        rotated.append(_rotated(x, args[7][positions], args[8][positions], kwargs.get("rotary_interleaved")).flatten(2))
    return *rotated, value


def _rotated(x, cos, sin, interleaved):
    dim = 2 * cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    pairs = turned.unflatten(-1, (-1, 2)) if interleaved else turned.unflatten(-1, (2, -1)).transpose(-1, -2)
    turn = torch.view_as_complex(torch.stack((cos, sin), -1)).unsqueeze(2)
    pairs = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = pairs.flatten(-2) if interleaved else pairs.transpose(-1, -2).flatten(-2)
    return torch.cat((turned, rest), -1)
