"""Strings, which are arrays of NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxops_decomp.importing.registry import onnx_op


@onnx_op("StringConcat")
def string_concat(X: Any, Y: Any) -> Any:
    return np.asarray(np.asarray(X, object) + np.asarray(Y, object), object)


@onnx_op("StringSplit")
def string_split(X: Any, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Any, Tensor]:
    limit = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, limit) if text else [] for text in np.asarray(X, object).reshape(-1)]
    width = max((len(each) for each in parts), default=0)
    padded = np.array([each + [""] * (width - len(each)) for each in parts], object).reshape(*X.shape, width)
    return padded, torch.tensor([len(each) for each in parts], dtype=torch.int64).reshape(X.shape)


@onnx_op("RegexFullMatch")
def regex_full_match(X: Any, pattern: str) -> Tensor:
    compiled = re.compile(pattern)
    hits = [compiled.fullmatch(text) is not None for text in np.asarray(X, object).reshape(-1)]
    return torch.tensor(hits, dtype=torch.bool).reshape(X.shape)


@onnx_op("StringNormalizer")
def string_normalizer(
    X: Any, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "", stopwords: Any = None
) -> Any:
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    same = str if is_case_sensitive else str.lower
    stops = {same(word) for word in stopwords or []}
    rows = [
        [change(text) for text in row if same(text) not in stops]
        for row in (X if X.ndim == 2 else X.reshape(1, -1)).tolist()
    ]
    kept = np.array([row or [""] for row in rows], object)
    return kept if X.ndim == 2 else kept[0]


@onnx_op("TfIdfVectorizer")
def tf_idf_vectorizer(
    X: Any,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    pool_strings: Any = None,
    weights: list[float] | None = None,
) -> Tensor:
    pool = list(pool_strings or pool_int64s or [])
    grams: dict[tuple[Any, ...], int] = {}
    for length, start in enumerate(ngram_counts, 1):
        end = ngram_counts[length] if length < len(ngram_counts) else len(pool)
        for place in range(start, end, length):
            grams[tuple(pool[place : place + length])] = len(grams)
    rows = X.tolist() if X.ndim == 2 else [X.tolist()]
    result = torch.zeros(len(rows), max(ngram_indexes) + 1)
    for number, row in enumerate(rows):
        for length in range(min_gram_length, max_gram_length + 1):
            for skip in range(1 if length == 1 else max_skip_count + 1):
                for start in range(len(row) - (length - 1) * (skip + 1)):
                    gram = grams.get(tuple(row[start : start + length * (skip + 1) : skip + 1]))
                    if gram is not None:
                        result[number, ngram_indexes[gram]] += 1
    factors = torch.ones_like(result[0])
    if weights is not None:
        factors[torch.tensor(ngram_indexes)] = torch.tensor(weights)
    if mode == "IDF":
        result = (result > 0).float()
    if mode != "TF":
        result = result * factors
    return result if X.ndim == 2 else result[0]
