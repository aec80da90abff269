"""Words that are easily written wrongly, for the tests here and for those on a real systemd."""

from __future__ import annotations

NASTY = [
    "", " ", "a b", " a ", "\t", "a\tb", "a\nb", "\n", "\r", "a\r\nb", "\x01", "\x1b[31m", "\x7f", "\x85", "\u2028",
    "$", "$$", "$HOME", "${HOME}", "$5", "a$b", "%", "%%", "%h", "%n%%", "100%", "%i/%I",
    '"', "'", '"a"', "'a'", 'a"b', "a'b", '""', "\\", "\\\\", "a\\", "\\n", "\\x41", "\\u0041", "\\101", 'a\\"b', "\\ ",
    ";", "a;b", "\\;", "; rm", "#", "#a", "@", "@a", "-", "-a", "--", "+a", "!a", "!!a", ":a", "|a", "=", "=a",
    "a=b", "A=b c", "*", "?", "[a]", "{a,b}", "~", "`id`", "$(id)", "<a", ">a", "&", "&&", "(a)",
    '{"a": [1, "b"], "c": {"d": "$e %f \\\\ \\"g"}}',
    "äöü", "日本語", "😀", "e\u0301", "\u00a0", "\u200b", "\u202e", "\ufeff", "\ue000", "\U0010fffd",
    "/a b/c", "[Unit]", "x" * 4000,
]  # fmt: skip
