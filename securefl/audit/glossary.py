"""Words of an audit's report that not every reader knows, each with its meaning in one line."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from securefl.audit.thresholds import CLEAR_ERROR, CLEAR_PSNR

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "attack": "A try to learn from what a party saw something about a person's data; here all "
        "are ours.",
        "AUC": "Share of pairs, one training record and one other, that an attack puts in order: "
        "50 % is guessing, 100 % is certain.",
        "baseline": "Attack of nobody: a guess from public samples of the same label, which real "
        "attacks have to beat.",
        "batch": "Records that a client trains on in one step.",
        "BN": "Batch normalisation: layers that use the mean and variance of a batch.",
        "canary": "A made-up record, or client, put into a second run to see whether it can be "
        "found again.",
        "checked": "Of logs and tables: held against the settings and the run's own files. Nobody "
        "attacked them.",
        "clip norm": "Largest length of one record's or one client's share of an update.",
        "dB": "Decibel, of a rebuilt picture's likeness: from "
        f"{CLEAR_PSNR:g} on it counts as recovered.",
        "δ": "Probability with which ε does not hold.",
        "ε": "Differential privacy's bound on what a model tells of a record: near 0 nothing, "
        "above 8 a lot.",
        "epoch": "Number of the keys in force: one more each time that they are changed.",
        "FPR": "False positive rate: share of other records that an attack takes for training "
        "records.",
        "gradient": "Direction in which a client's data move the model; a batch's records are in "
        "it.",
        "ledger": "List of all messages of the run: who sent whom how many values, and in which "
        "form.",
        "LiRA": "Likelihood ratio attack (Carlini 2022): compares with models trained with and "
        "without a record.",
        "PLD": "Privacy loss distribution: the accountant that adds up ε over rounds.",
        "population": "Of an attacker: it takes the model's running statistics for the batch's.",
        "profile": "Means and variances of a layer's values over one client's records.",
        "PSNR": "Likeness of a rebuilt picture to the original, in dB.",
        "recovered": "Of a rebuilt sample: so near to the original that it counts as the same, "
        f"{CLEAR_PSNR:g} dB or more for a picture, {CLEAR_ERROR:g} σ or less for a row.",
        "RMIA": "Robust membership inference attack (Zarifzadeh 2024): compares a record with "
        "others.",
        "sealed": "Encrypted by its sender, so that the server adds it up and cannot read it.",
        "shadow model": "A model that the attacker trains itself, to see how training shows.",
        "ROC": "Curve of an attack's TPR against its FPR.",
        "σ": "Standard deviation: of a column of readings, in which errors of rebuilt rows are, or "
        "of noise.",
        "SSIM": "Structural similarity of two pictures: 1 where they are the same.",
        "total": "Sum over the clients, which is decrypted; of single clients nothing is, but "
        "scores of profiles in a run that has them.",
        "trial": "A run of the audit's own, with other clients or other settings than this run.",
        "TPR": "True positive rate: share of training records that an attack recognises.",
    }
)
"""Meaning by word."""
_PLURALS = {"batch": "(es)?", "canary": "|canaries", "BN": "", "AUC": "", "ε": "", "δ": "", "σ": ""}


def used(texts: Iterable[str]) -> dict[str, str]:
    """Return the words that stand in these texts, with their meanings, in the glossary's order."""
    joined = "\n".join(texts)
    return {word: meaning for word, meaning in MEANINGS.items() if _pattern(word).search(joined)}


def _pattern(word: str) -> re.Pattern[str]:
    """Return a pattern of the word and of its plural."""
    plural = _PLURALS.get(word, "s?")
    return re.compile(rf"(?<!\w)(?:{re.escape(word)}{plural})(?!\w)", re.IGNORECASE)
