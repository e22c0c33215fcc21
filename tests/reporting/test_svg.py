from html import unescape

from hypothesis import given
from hypothesis import strategies as st

from celrec.reporting.drawing import element
from celrec.reporting.wording import page_json

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)


@given(WORDS, WORDS)
def test_words_can_never_leave_their_element(words, value):
    made = str(element("text", words, data_x=value))
    assert made.count("<") == made.count(">") == 2
    assert unescape(made) == f'<text data-x="{value}">{words}</text>'


@given(
    st.recursive(
        WORDS | st.integers(), lambda parts: st.lists(parts) | st.dictionaries(WORDS, parts)
    )
)
def test_json_in_a_page_can_never_end_its_script(value):
    import json

    made = str(page_json(value))
    assert not set("<>&\u2028\u2029") & set(made)
    assert json.loads(made) == value
