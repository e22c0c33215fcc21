"""Table 7: methods on MovieLens of other sizes, items compressed."""

from __future__ import annotations

from reproduce.method_rows import METHODS, method_entries
from reproduce.table2 import NOTES
from reproduce.trial_table import TrialTable

SMALL = {
    "Vanilla": (0.9283,),
    "eTree": (0.9127, 0.9830, 0.9973, 0.9873),
    "JNKM": (0.8841, 1.0501, 1.0463, 1.1054),
    "Modulo": (None, 1.0908, 1.1045, 1.1097),
    "BH": (None, 1.0243, 1.0695, 1.0729),
    "AE": (None, 1.0715, 1.0863, 1.0969),
    "PreHash K=4": (None, 0.9165, 0.9602, 0.9833),
    "PreHash K=M": (None, 0.9140, 0.9533, 0.9599),
    "CEL": (0.8602, 0.8689, 0.8707, 0.8906),
    "CEL-Lite": (0.8611, 0.8702, 0.8824, 0.8928),
}
LARGE = {
    "Vanilla": (0.7227,),
    "eTree": (0.7000, 0.7701, 0.7830, 0.7902),
    "JNKM": (0.6941, 0.7766, 0.7923, 0.7962),
    "Modulo": (None, 0.8402, 0.8532, 0.8658),
    "BH": (None, 0.8351, 0.8441, 0.8544),
    "AE": (None, 0.8377, 0.8503, 0.8637),
    "PreHash K=4": (None, 0.7816, 0.7934, 0.7937),
    "PreHash K=M": (None, 0.7493, 0.7518, 0.7692),
    "CEL": (0.6888, 0.7301, 0.7374, 0.7389),
    "CEL-Lite": (0.6904, 0.7343, 0.7407, 0.7421),
}

EXPERIMENTS = {
    "table7": TrialTable(
        "table7",
        "Table 7: MovieLens-100k and 10m, NMF, test MSE",
        [
            *method_entries(
                "ml-100k", {"5 %": "84", "1 %": "17", "0.5 %": "8"}, SMALL, METHODS, model="nmf"
            ),
            *method_entries(
                "ml-10m", {"5 %": "534", "1 %": "107", "0.5 %": "53"}, LARGE, METHODS, model="nmf"
            ),
        ],
        reference="CEL",
        notes=(*NOTES, "MovieLens-1m, which the paper repeats here, stands in Table 2."),
    ),
}
