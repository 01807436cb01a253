"""Answers under Lark grammars, read again by Lark itself (Debian's python3-lark): what the server lets a model write is a
text of the grammar."""
import pathlib
import unittest

from harness import DEMO, Case
from serving import Server

try:
    import lark
except ImportError:
    lark = None

GRAMMARS = {
    "patch": r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.+)/? LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.+)/? LF
eof_line: "*** End of File" LF
%import common.LF
""",
    "sums": r"""start: "let" NAME "=" sum ";"
sum: sum "+" product | product
product: product "*" atom | atom
atom: NUMBER | NAME | "(" sum ")"
%import common.CNAME -> NAME
%import common.NUMBER
%import common.WS
%ignore WS
""",
    "json": r"""start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: ESCAPED_STRING ":" value
%import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
%ignore WS
""",
    "words": r"""start: ("get"i | "put"i) " " PATH ("?" KEY "=" /[^&\s]{1,6}/s)? " v" ("1".."3")~2..3
PATH: ("/" KEY)+
KEY: /[a-z_]{2,8}/i
""",
}


@unittest.skipUnless(lark, "python3-lark is not installed")
class Grammars(Case):
    def test_lark_reads_what_its_grammars_let_pass(self):
        whole = 0
        with Server(DEMO, "--log-format", "off") as server:
            for name, grammar in GRAMMARS.items():
                parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
                for seed in range(1, 31):
                    body = {"model": pathlib.Path(DEMO).stem, "messages": [{"role": "user", "content": "Go on."}], "guided_grammar": grammar,
                            "temperature": 1 + seed % 3 / 2, "seed": seed, "max_tokens": 200}
                    status, answer = server.json("POST", "/v1/chat/completions", body)
                    self.assertEqual(status, 200, answer)
                    choice = answer["choices"][0]
                    if choice["finish_reason"] != "stop":
                        continue  # cut
                    whole += 1
                    with self.subTest(grammar=name, seed=seed, text=choice["message"]["content"]):
                        parser.parse(choice["message"]["content"])
        self.assertGreater(whole, 20)


if __name__ == "__main__":
    unittest.main()
