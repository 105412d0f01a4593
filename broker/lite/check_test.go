package lite

import (
	"errors"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200)
	for _, c := range []struct {
		field string
		check func(string) error
		want  error
		good  []string
		bad   []string
	}{
		{
			field: "name", check: CheckName, want: ErrName,
			good: []string{"a", "A-z_9", long[:64], "_", "-"},
			bad:  []string{"", long[:65], "*", "a b", " ", "a/b", "a%b", "a|b", "a\x00", "a\n", "é", "..", "a.b"},
		},
		{
			field: "topic", check: CheckTopic, want: ErrTopic,
			good: []string{"requests", "%DLQ%g", "a|b", long[:127], "rmq_sys", "RMQ_SYS"},
			bad: []string{
				"", long[:128], "*", "a b", "a.b", "a\x00", "ü",
				"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
				"RMQ_SYS_TRACE_TOPIC", "rmq_sys_anything",
			},
		},
		{
			field: "group", check: CheckGroup, want: ErrGroup,
			good: []string{"pool", "a%b|c-d_e", long[:120], "CID_RMQ_SYS"},
			bad:  []string{"", long[:121], "*", "a b", "a/b", "CID_RMQ_SYS_TRANS"},
		},
		{
			field: "user", check: CheckUser, want: ErrUser,
			good: []string{"alice", "a b", "a/b:c%d|e+f_g", "é", "e\u0301", "..", "**", long[:128], "日本"},
			bad:  []string{"", "*", long[:129], " a", "a ", "a\u00a0", "a\x00b", "a\nb", "a\x7f", "a\u0085b", "\xff", strings.Repeat("x", 10<<10)},
		},
		{
			field: "model", check: CheckModel, want: ErrModel,
			good: []string{"gpt-4o", "org/model:v1"},
			bad:  []string{"", "*", long[:129], "a\t"},
		},
	} {
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			for _, s := range c.good {
				if err := c.check(s); err != nil {
					t.Errorf("%q: %v", s, err)
				}
			}
			for _, s := range c.bad {
				if err := c.check(s); !errors.Is(err, c.want) {
					t.Errorf("%q: got error %v, want one that wraps %q", s, err, c.want)
				}
			}
		})
	}
}

func TestCheckNamesFaultAndLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{CheckName(strings.Repeat("n", 65)), "illegal lite topic: it has 65 bytes, at most 64"},
		{CheckName("a b"), `illegal lite topic: "a b" has byte 0x20 at 1, allowed are letters, digits, '_' and '-'`},
		{CheckUser("*"), `illegal user: "*" is the wildcard`},
		{CheckModel(""), "illegal model: it is empty, want 1 to 128 bytes"},
		{CheckGroup("CID_RMQ_SYS_X"), `illegal consumer group: "CID_RMQ_SYS_X" is a system group`},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", c.err, c.want)
		}
	}
}
