"""Messages fit in a line that can be read."""

from multippo.errors import one_line


def test_a_message_of_half_a_million_characters_loses_its_middle():
    text = one_line(ValueError(f"a\nb {'x' * 500_000} leave it out"))
    assert text.startswith("a b xxx") and text.endswith("xxx leave it out")
    assert len(text) < 2100
    assert one_line(ValueError("a\n b")) == "a b" and one_line(ValueError()) == "ValueError"
