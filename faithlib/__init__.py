"""faithlib: which salience method finds the evidence that we planted?

The rooms, left to right; a module imports only from its left, and ``tests/test_house.py`` says so:

    registry paths shapes cache progress      the ground floor, importable by all (memory too)
    assets   where weights, vectors and texts come from
    data     real texts, split          -> Dataset of Example(words, label, evidence)
    shortcuts   plant evidence we know  -> Example with its evidence marked
    models   one protocol, TextClassifier, for every architecture
    training fit a classifier; knows nothing of shortcuts
    salience ask each method where the evidence is
    attribution    what an attack sees of a classifier and a method: two functions of sentences
    distances      between two explanations, and between two sentences
    attack         move the explanation with an edit that keeps the prediction (TEA, TEF)
    faithfulness   score the answers against the truth
    robustness     k, its curves over the share of replaced words, and their areas
    settings       what a run is about, from a notebook's parameters
    experiment     one cell (data, shortcut, model, seed) and what it yields; robustness_experiment likewise for attacks
    suspects ranking audit                     a classifier of your own: words that it leans on, and the protocol on copies of it
    claims figures heatmap report cli          what people look at
    protocol                                   all of it as a call, with functions of your own
"""

import warnings

__version__ = "0.1.0"

# tqdm wants its Jupyter widget; this project shows plain text, and the warning would print a folder of the reader's machine into the notebook.
warnings.filterwarnings("ignore", message="IProgress not found")
