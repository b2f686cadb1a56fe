"""The code that CONTRIBUTING shows is the code that runs."""

import re
from pathlib import Path

import numpy as np

from faithlib.salience import SALIENCE, explain


def test_the_method_shown_in_contributing_works(tiny_bert):
    text = (Path(__file__).resolve().parent.parent / "CONTRIBUTING.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(code, {"__name__": "occlusion_example"})
    try:
        [explanation] = explain(tiny_bert, "a moving film", "occlusion")
        together = explain(tiny_bert, ["a moving film", "a much longer sentence about a dull film"], ["occlusion", "gradient_l2"])
        scores = explanation.scores["occlusion"]
        assert scores.shape == (3,)
        assert np.ptp(scores) > 0
        np.testing.assert_allclose(together[0].scores["occlusion"], scores, atol=1e-6)
    finally:
        SALIENCE.remove("occlusion")
