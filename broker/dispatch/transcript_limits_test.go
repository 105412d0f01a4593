package dispatch

import (
	"fmt"

	"github.com/cockroachdb/datadriven"
	"github.com/penstockmq/penstock/suspend"
	"github.com/penstockmq/penstock/suspend/policy"
	"github.com/penstockmq/penstock/suspend/quota"
	"github.com/penstockmq/penstock/suspend/signal"
)

// limits are the commands of policies and what follows from them.
func (s *story) limits(d *datadriven.TestData, group GroupID) error {
	r := s.rig
	switch d.Cmd {
	case "policy":
		doc, err := policy.Parse([]byte("version: 1\n" + d.Input))
		if err != nil {
			return err
		}
		r.disk.policy = doc
		r.m.SetPolicy(r.now, doc)
	case "signal":
		scope, err := suspend.ParseScope(d.CmdArgs[0].Key)
		if err != nil {
			return err
		}
		target := suspend.Target{Scope: scope, Name: s.word(d, "name", "")}
		if d.HasArg("drop") {
			r.m.DropSignal(r.now, target, "alarm")
			return nil
		}
		r.m.SetSignal(r.now, signal.Signal{
			Target: target, Source: "alarm", Permille: int64(s.integer(d, "permille", 0)), At: r.now, Until: r.now.Add(s.duration(d, "for")),
		})
	case "settle":
		learned := quota.Settlement{Outcome: quota.Used, Tokens: int64(s.integer(d, "tokens", -1)), OutputTokens: -1}
		then := map[string]Then{
			"ack": ThenAck(), "suspend": ThenSuspend(s.duration(d, "for"), "worker", ""), "retry": ThenRetry(s.duration(d, "for")), "reject": ThenReject("refused"),
		}
		return r.m.Settle(r.now, s.handle(d), learned, then[s.word(d, "then", "ack")])
	case "explain":
		s.explain(d, group)
	}
	return nil
}

func (s *story) explain(d *datadriven.TestData, group GroupID) {
	off := NextOffset
	if d.HasArg("offset") {
		off = Offset(s.integer(d, "offset", 0))
	}
	x, ok := s.rig.m.Explain(s.rig.now, group, d.CmdArgs[0].Key, off)
	if !ok {
		s.say("no such message")
		return
	}
	gate := "none"
	if x.Gate != (suspend.Target{}) {
		gate = fmt.Sprintf("%v %s", x.Gate, x.Limit)
	}
	s.say("message %d is %v, position %d, level %d, gate %s, since %s until %s, starts about %s", x.Offset, x.State, x.Position, x.Level, gate, s.at(x.Since), s.at(x.Until), s.at(x.EstimatedStart))
	s.say("opens: %s", x.Opens)
	for _, l := range x.Lines {
		s.say("  %s %s %s %s: %d of %d, open %v", l.Scope, l.Name, l.Limit, l.Value, l.Used, l.Max, l.Open)
	}
}
