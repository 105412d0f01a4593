package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"
)

// hostile clears a screen, sets its title, and ends a row of a table.
const hostile = "\x1b[2J\x1b]0;t\x07\x7f\u009b1A\rx\ny\tz\u00e9"

// Reasons, names and messages come from producers, consumers and upstreams. No command that shows them may let one of them
// drive the terminal.
func TestNoTextFromOutsideDrivesTheTerminal(t *testing.T) {
	text, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	hold := fmt.Sprintf(`{"scope":"row","name":%[1]s,"until":"2026-01-02T04:00:00Z","by":%[1]s,"reason":%[1]s}`, text)
	bucket := fmt.Sprintf(`{"name":%[1]s,"user":%[1]s,"model":%[1]s,"status":%[1]s,"groups":[{"group":%[1]s,"suspend":%[2]s}]}`, text, hold)
	version := fmt.Sprintf(`{"revision":4,"author":%[1]s,"comment":%[1]s,"text":%[1]s}`, text)
	for _, c := range []struct{ command, answer string }{
		{"suspends list", `{"suspends":[` + hold + `]}`},
		{"suspends set x --for 1m", hold},
		{"buckets list", `{"buckets":[` + bucket + `]}`},
		{"buckets show x", bucket},
		{"dlq list", fmt.Sprintf(`{"dead_letters":[{"sequence":1,"topic":%[1]s,"bucket":%[1]s,"message_id":%[1]s,"reason":%[1]s}]}`, text)},
		{"explain --bucket x", fmt.Sprintf(`{"bucket":%[1]s,"user":%[1]s,"model":%[1]s,"request_id":%[1]s,"suspend":%[2]s,"policy_notice":%[1]s}`, text, hold)},
		{"policy history", `{"versions":[` + version + `]}`},
		{"policy show", fmt.Sprintf(`{"source":"","version":%s,"document":%s,"notice":%[2]s}`, version, text)},
	} {
		for _, failed := range []bool{false, true} {
			for _, asJSON := range []bool{false, true} {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if failed {
						w.WriteHeader(http.StatusBadRequest)
						fmt.Fprintf(w, `{"error":{"code":"c","message":%s}}`, text)
						return
					}
					fmt.Fprint(w, c.answer)
				}))
				args := append(strings.Fields(c.command), "--admin", strings.TrimPrefix(server.URL, "http://"))
				if asJSON {
					args = append(args, "--json")
				}
				var out, errOut bytes.Buffer
				code := run(args, nil, strings.NewReader(""), &out, &errOut)
				server.Close()
				if want := map[bool]int{false: exitOK, true: exitFailed}[failed]; code != want {
					t.Errorf("%s: exit code %d, want %d: %s", args, code, want, errOut.String())
				}
				printed := out.String() + errOut.String()
				bad := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
				if i := strings.IndexFunc(printed, bad); i >= 0 || !strings.Contains(printed, `\u001b[2J`) {
					t.Errorf("%s printed a control character at %d: %q", args, i, printed)
				}
				var same any
				if asJSON && !failed && json.Unmarshal(out.Bytes(), &same) != nil {
					t.Errorf("%s printed text that is no JSON: %s", args, printed)
				}
			}
		}
	}
}

func TestEscapeControls(t *testing.T) {
	for _, c := range []struct{ text, keep, want string }{
		{"plain \u00e9", "", "plain \u00e9"},
		{"a\nb\tc", "", `a\u000ab\u0009c`},
		{"a\nb\tc", "\t\n", "a\nb\tc"},
		{"a\r\nb\rc\r", "\t\n", "a\r\nb\\u000dc\\u000d"}, // a policy with Windows line ends stays as it is
		{"\x9b1A\xff", "", "\ufffd1A\ufffd"},
	} {
		if got := escapeControls(c.text, c.keep); got != c.want {
			t.Errorf("%q keeping %q: got %q, want %q", c.text, c.keep, got, c.want)
		}
	}
}
