from reproduce.report import Report, ResultTable


def test_a_table_is_padded_markdown():
    table = ResultTable(("", "5 %"), [("CEL", "0.7 ± 0.1 [0.8]"), ("Modulo", "–")], caption="MSE:")
    assert table.markdown().splitlines() == [
        "MSE:",
        "",
        "|        | 5 %             |",
        "|--------|-----------------|",
        "| CEL    | 0.7 ± 0.1 [0.8] |",
        "| Modulo | –               |",
    ]


def test_a_report_says_what_is_missing_first():
    table = ResultTable(("a",), [("b",)])
    told = Report("Table 9", [table], ["f.png"], ["one", "two"], missing=1200).markdown()
    assert told == (
        "## Table 9\n\n**Not finished: 1,200 cells are missing.**\n\n"
        "| a |\n|---|\n| b |\n\n![Table 9](f.png)\n\n- one\n- two\n"
    )
    assert Report("Table 9").markdown() == "## Table 9\n"
