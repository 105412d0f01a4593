package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/penstockmq/penstock/suspend"
)

// TestTranscripts runs the stories in testdata/transcripts. Each command is one event and the
// turn after it; the answer is all that came of it. Instants are printed as the time
// since the story began. Rewrite with -rewrite and read the difference.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := &story{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

// story is a rig that speaks.
type story struct {
	t       *testing.T
	topic   TopicConfig
	groups  []GroupConfig
	rig     *rig
	handles map[string]Handle
	given   int
	text    strings.Builder
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	s.text.Reset()
	switch d.Cmd {
	case "topic":
		s.configureTopic(d)
		return "ok\n"
	case "group":
		s.configureGroup(d)
		return "ok\n"
	}
	if s.rig == nil {
		s.rig = newRig(t, s.topic, s.groups...)
		s.handles = map[string]Handle{}
	}
	s.event(d)
	s.settleDown()
	if s.text.Len() == 0 {
		return "nothing\n"
	}
	return s.text.String()
}

func (s *story) configureTopic(d *datadriven.TestData) {
	s.topic.TTL = s.duration(d, "ttl")
	d.MaybeScanArgs(s.t, "messages", &s.topic.MaxMessages)
	s.topic.ExpireBacklog = d.HasArg("expire-backlog")
}

func (s *story) configureGroup(d *datadriven.TestData) {
	g := GroupConfig{Wildcard: d.HasArg("wildcard"), Exclusive: d.HasArg("exclusive")}
	id := s.integer(d, "id", 1)
	g.ID, g.Name = GroupID(id), fmt.Sprint("group", id)
	d.MaybeScanArgs(s.t, "in-flight", &g.InFlight)
	d.MaybeScanArgs(s.t, "attempts", &g.MaxAttempts)
	s.groups = append(s.groups, g)
}

func (s *story) duration(d *datadriven.TestData, key string) time.Duration {
	text := ""
	d.MaybeScanArgs(s.t, key, &text)
	if text == "" {
		return 0
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(s.t, "%s: %v", key, err)
	}
	return v
}

func (s *story) integer(d *datadriven.TestData, key string, def int) int {
	d.MaybeScanArgs(s.t, key, &def)
	return def
}

func (s *story) word(d *datadriven.TestData, key, def string) string {
	d.MaybeScanArgs(s.t, key, &def)
	return def
}

func (s *story) handle(d *datadriven.TestData) Handle {
	h, ok := s.handles[d.CmdArgs[0].Key]
	if !ok {
		d.Fatalf(s.t, "no handle %q", d.CmdArgs[0].Key)
	}
	return h
}

func (s *story) event(d *datadriven.TestData) {
	r, now := s.rig, s.rig.now
	group := GroupID(s.integer(d, "group", 1))
	var err error
	switch d.Cmd {
	case "send":
		err = s.send(d)
	case "pull":
		_, err = r.m.Pull(now, PullRequest{
			Group: group, Client: d.CmdArgs[0].Key, Max: s.integer(d, "max", 1), Invisible: s.duration(d, "invisible"),
			AutoRenew: d.HasArg("auto-renew"), AttemptID: s.word(d, "attempt-id", ""), Until: now.Add(s.duration(d, "wait")),
		})
	case "ack":
		err = r.m.Ack(now, s.handle(d))
	case "suspend":
		err = r.m.Suspend(now, s.handle(d), s.duration(d, "for"), "worker", "")
	case "invisible":
		err = r.m.ChangeInvisible(now, s.handle(d), s.duration(d, "for"))
	case "release":
		r.m.Release(now, s.handle(d))
	case "dead-letter":
		err = r.m.DeadLetter(now, s.handle(d), "refused")
	case "expire":
		r.m.Expire(now, s.handle(d))
	case "missing":
		r.m.Missing(now, s.handle(d))
	case "cancel":
		b := r.disk.buckets[d.CmdArgs[0].Key]
		s.say("%s", []string{"cancelled", "running", "gone"}[r.m.Cancel(now, b.Name, b.ID, Offset(s.integer(d, "offset", 0)))])
	case "purge":
		s.say("purged %d", r.m.Purge(now, d.CmdArgs[0].Key))
	case "seek":
		err = r.m.Seek(now, group, d.CmdArgs[0].Key, Offset(s.integer(d, "offset", 0)))
	case "hold", "lift":
		err = s.hold(d, group)
	case "policy", "signal", "settle", "explain":
		err = s.limits(d, group)
	case "subscribe":
		err = s.subscribe(d, group)
	case "touch":
		r.m.Touch(now, d.CmdArgs[0].Key)
	case "gone":
		r.m.ClientGone(now, d.CmdArgs[0].Key)
	case "terminate":
		r.m.Terminate(now, group, d.CmdArgs[0].Key)
	case "pass":
		s.pass(d)
	case "sweep":
		s.sweep()
	case "kill":
		r.m = r.disk.start(now)
	case "stats":
		s.stats()
	default:
		d.Fatalf(s.t, "unknown command %q", d.Cmd)
	}
	if err != nil {
		s.say("error: %v", err)
	}
}

func (s *story) send(d *datadriven.TestData) error {
	msgs := messages(s.integer(d, "n", 1))
	if in := s.duration(d, "deadline"); in > 0 {
		for i := range msgs {
			msgs[i].Deadline = s.rig.now.Add(in)
		}
	}
	s.rig.stamp = int8(s.integer(d, "stamp", -1) + 1)
	s.rig.cost = MessageCost{
		Requests: int64(s.integer(d, "requests", 0)), Input: int64(s.integer(d, "input", 0)), MaxOutput: int64(s.integer(d, "output", 0)),
	}
	_, err := s.rig.trySend(d.CmdArgs[0].Key, msgs...)
	return err
}

func (s *story) hold(d *datadriven.TestData, group GroupID) error {
	scope, err := suspend.ParseScope(d.CmdArgs[0].Key)
	if err != nil {
		return err
	}
	target := suspend.Target{Scope: scope, Name: s.word(d, "name", "")}
	if d.Cmd == "lift" {
		_, err := s.rig.m.LiftHold(s.rig.now, group, target)
		return err
	}
	h := suspend.Hold{Target: target, Until: s.rig.now.Add(s.duration(d, "for"))}
	if d.HasArg("exact") {
		return s.rig.m.SetHold(s.rig.now, group, h)
	}
	_, err = s.rig.m.ExtendHold(s.rig.now, group, h)
	return err
}

func (s *story) subscribe(d *datadriven.TestData, group GroupID) error {
	actions := map[string]SyncAction{"add": PartialAdd, "remove": PartialRemove, "all": CompleteAdd, "forget": CompleteRemove}
	action, ok := actions[s.word(d, "action", "all")]
	if !ok {
		d.Fatalf(s.t, "unknown action")
	}
	var names []string
	if arg, ok := d.Arg("names"); ok {
		names = arg.Vals
	}
	res, err := s.rig.m.SyncSubscription(s.rig.now, SyncRequest{Group: group, Client: d.CmdArgs[0].Key, Action: action, Names: names})
	if err == nil {
		s.say("added %d removed %d wildcard %v", res.Added, res.Removed, res.Wildcard)
	}
	return err
}

// pass sleeps as a loop would and says what each turn brought.
func (s *story) pass(d *datadriven.TestData) {
	r := s.rig
	by, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	end := r.now.Add(by)
	for {
		wake, ok := r.m.NextWake()
		if !ok || wake.After(end) {
			break
		}
		r.now = wake
		before := s.text.Len()
		s.settleDown()
		if s.text.Len() > before {
			text := s.text.String()
			s.text.Reset()
			s.text.WriteString(text[:before] + "at " + s.at(r.now) + ":\n" + text[before:])
		}
	}
	r.now = end
}

func (s *story) sweep() {
	for _, id := range sorted(s.rig.disk.expiry) {
		e := s.rig.disk.expiry[id]
		if state, ok := s.rig.disk.buckets[e.Name]; !e.At.After(s.rig.now) {
			s.say("sweep %s: deleted %v", e.Name, s.rig.m.Sweep(s.rig.now, e, state, ok))
		}
	}
}

func (s *story) stats() {
	st := s.rig.m.Stats()
	s.say("buckets %d resident %d messages %d", st.Buckets, st.Resident, st.Messages)
	for _, g := range st.Groups {
		s.say("group %d: ready %d parked %d leases %d returned %d waiters %d", g.ID, g.Ready, g.Parked, g.Leases, g.Returned, g.Waiters)
	}
}

// settleDown takes a turn and says what came of it.
func (s *story) settleDown() {
	r := s.rig
	r.m.Tick(r.now)
	r.m.Match(r.now)
	e := r.m.Take()
	for i := range e.Writes {
		s.say("  %s", s.writeText(&e.Writes[i]))
	}
	r.disk.apply(e.Writes)
	for _, d := range e.Deliveries {
		for _, it := range d.Items {
			s.say("deliver to %s: %s/%d attempt %d until %s as %s", d.Waiter.member.client.name, it.Name, it.Handle.Offset, it.Attempt, s.at(it.Until), s.label(it.Handle))
		}
	}
	for _, w := range e.EmptyPulls {
		s.say("empty poll of %s", w.member.client.name)
	}
	for _, n := range e.Notices {
		s.say("tell %s that it lost %s", n.Client, n.Name)
	}
}

// label names a handle; the same token keeps its name.
func (s *story) label(h Handle) string {
	for l, x := range s.handles {
		if x == h {
			return l
		}
	}
	s.given++
	l := fmt.Sprint("h", s.given)
	s.handles[l] = h
	return l
}

func (s *story) at(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return "+" + t.Sub(epoch0).String()
}

func (s *story) say(format string, args ...any) { fmt.Fprintf(&s.text, format+"\n", args...) }

func (s *story) name(id BucketID) string {
	for name, b := range s.rig.disk.buckets {
		if b.ID == id {
			return name
		}
	}
	return fmt.Sprint("new ", id&0xffff)
}

func (s *story) writeText(w *Write) string {
	switch w.Op {
	case PutBucket:
		return fmt.Sprintf("put bucket %s [%d, %d) bytes %d active %s expiry %s", w.Name, w.State.Head, w.State.Tail, w.State.Bytes, s.at(w.State.LastActive), s.at(w.State.Expiry))
	case DeleteBucket:
		return "delete bucket " + w.Name
	case DeleteMessages:
		return fmt.Sprintf("delete messages %s [%d, %d)", w.Name, w.Offset, w.To)
	case PutCursor:
		return fmt.Sprintf("put cursor %d %s floor %d settled %v returned %v", w.Group, s.name(w.Bucket), w.Cursor.Floor, w.Cursor.Settled, w.Cursor.Returned)
	case DeleteCursor:
		return fmt.Sprintf("delete cursor %d %s", w.Group, s.name(w.Bucket))
	case PutLease:
		return fmt.Sprintf("put lease %d %s/%d until %s attempt %d", w.Lease.Group, s.name(w.Lease.Bucket), w.Lease.Offset, s.at(w.Lease.Until), w.Lease.Attempt)
	case DeleteLease:
		return fmt.Sprintf("delete lease %d %s/%d", w.Group, s.name(w.Bucket), w.Offset)
	case PutHold:
		return fmt.Sprintf("put hold %d %v until %s", w.Group, w.Hold.Target, s.at(w.Hold.Until))
	case DeleteHold:
		return fmt.Sprintf("delete hold %d %v", w.Group, w.Hold.Target)
	case DeadLetter:
		return fmt.Sprintf("dead letter %d %s/%d attempt %d: %s", w.Group, w.Name, w.Offset, w.Attempt, w.Reason)
	case ReserveBuckets:
		return fmt.Sprintf("reserve bucket ids below %d", w.Sequence)
	case PutSubscription:
		return fmt.Sprintf("put subscription %d %s %v wildcard %v", w.Group, w.Subscription.Client, w.Subscription.Names, w.Subscription.Wildcard)
	case DeleteSubscription:
		return fmt.Sprintf("delete subscription %d %s", w.Group, w.Subscription.Client)
	case PutExpiry:
		return fmt.Sprintf("put expiry %s %s", s.at(w.At), w.Name)
	case PutAccount:
		return fmt.Sprintf("put account %d %v", w.Group, w.Account.Target)
	case DeleteAccount:
		return fmt.Sprintf("delete account %d %v", w.Group, w.Account.Target)
	case PutDead:
		return fmt.Sprintf("put dead %s%s", s.name(w.Bucket), deadRanges(w.Dead))
	case DeleteDead:
		return fmt.Sprintf("delete dead %s from %d", s.name(w.Bucket), w.Offset)
	case DeleteExpiry:
		return fmt.Sprintf("delete expiry %s %s", s.at(w.At), w.Name)
	default:
		return fmt.Sprint("op ", w.Op)
	}
}

// deadRanges are the stretches of a page that are dead.
func deadRanges(d *DeadState) string {
	var s strings.Builder
	for at := Offset(0); at < pageSize; at++ {
		from := at
		for at < pageSize && d.Page[at>>6]&(1<<(at&63)) != 0 {
			at++
		}
		if at > from {
			fmt.Fprintf(&s, " [%d, %d)", d.Start+from, d.Start+at)
		}
	}
	return s.String()
}
