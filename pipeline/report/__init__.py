"""What does one HTML page show of a run, an iteration or an evaluation? All is in the file: no server.

    source   what the report is of: the stores to read
    rows     tables → the episodes and turns that the page has, each text once
    pieces   token ids → the text of each token, with the tokenizer that the rows were made with
    drawing  the workflow's graph → SVG
    about    the numbers and settings beside them
    page     all of it → one HTML file

Model output reaches the page as data and becomes text there, never markup: `page` says how.
"""
