package test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/cmd/mockmodel"
)

// operation runs an operations command against a process and reads its JSON.
func (p *process) operation(into any, args ...string) {
	p.t.Helper()
	must(p.t, json.Unmarshal([]byte(run(p.t, append(args, "--admin", p.ready["admin"], "--json")...)), into))
}

// suspended sets a suspend by command and returns it as the broker has it.
func (p *process) suspended(args ...string) (s admin.Suspend) {
	p.t.Helper()
	p.operation(&s, append([]string{"suspends", "set"}, args...)...)
	return s
}

func (p *process) lifted(args ...string) bool {
	p.t.Helper()
	var l admin.Lifted
	p.operation(&l, append([]string{"suspends", "lift"}, args...)...)
	return l.Lifted
}

// TestC16_ColumnAndBucketAreSeparate pauses a bucket and its column, one by the
// operations command and the other by the admin API, and lifts the column alone. The
// case's times are about a third.
func TestC16_ColumnAndBucketAreSeparate(t *testing.T) {
	t.Parallel()
	s := up(t, setup{live: "default_level: 1\n"})
	p := s.producerOf()
	s.suspended("--all", "--for", "10m") // until all is set up
	queue(t, p, "u1", model, 3)
	queue(t, p, "u2", model, 3)
	bucket := s.suspended("--user", "u1", "--model", model, "--for", "6s", "--reason", "one bucket", "--by", "case")
	if code, text := s.request(http.MethodPut, "/api/v1/groups/"+group+"/suspends",
		`{"scope":"column","name":"`+model+`","duration":"10m","reason":"all of the model","by":"api"}`); code != http.StatusOK {
		t.Fatalf("pause of the column: %d %s", code, text)
	}
	if !s.lifted("--all") {
		t.Error("all was not held")
	}
	if s.lifted("--user", "u9", "--model", model) { // does not exist yet
		t.Error("a bucket that does not exist was held")
	}
	queue(t, p, "u5", model, 1)
	var list admin.Suspends
	s.operation(&list, "suspends", "list")
	if len(list.Suspends) != 2 || list.Suspends[0].By != "case" || list.Suspends[0].Reason != "one bucket" ||
		list.Suspends[1].By != "api" || list.Suspends[1].Scope != "column" {
		t.Errorf("suspends in force: %+v", list.Suspends)
	}
	until(t, time.Now().Add(slack))
	if n := s.stub.Stats().Calls; n != 0 {
		t.Fatalf("%d calls while the column is paused", n)
	}
	opens := time.Now()
	if !s.lifted("--model", model) {
		t.Error("the column was not held")
	}
	s.stub.wait("u2 and u5", func(st mockmodel.Stats) bool { return st.Calls >= 4 })
	sent := time.Now()
	queue(t, p, "u9", model, 1)
	late := s.stub.first("u9", ofUser("u9")).Sub(sent)
	if late > slack {
		t.Errorf("u9, which a resume was sent for before it existed, came %v after its send", late)
	}
	if s.lifted("--model", model) {
		t.Error("the column was held still")
	}
	s.stub.wait("u1", func(st mockmodel.Stats) bool { return st.Calls == 8 })
	for _, c := range s.stub.Calls(0) {
		earliest := opens
		if c.User == "u1" {
			earliest = bucket.Until
		}
		if c.Began.Before(earliest) || c.User != "u1" && c.Began.After(opens.Add(soon)) {
			t.Errorf("%s came %v after its gate opened", c.User, c.Began.Sub(earliest))
		}
	}
}

// TestC18_SameConfigurationKeepsSuspends suspends 100 messages for an hour and then makes
// the topic, the group and the policy again and again.
func TestC18_SameConfigurationKeepsSuspends(t *testing.T) {
	t.Parallel()
	const messages, times, rules = 100, 10, "limits: [{user: \"*\", rate: 50/s}]\n"
	f := startFleet(t, "")
	sendEach(t, f.producer(), messages, messages, func(i int) []byte { return []byte(strconv.Itoa(i)) })
	worker := f.raw()
	for _, m := range worker.receiveAll(messages, time.Minute) {
		worker.suspend(m, time.Hour)
	}
	holds := func() map[string]time.Time {
		var list admin.Suspends
		f.query("groups/"+group+"/suspends?limit=1000", &list)
		out := map[string]time.Time{}
		for _, h := range list.Suspends {
			out[h.Scope+" "+h.Name] = h.Until
		}
		return out
	}
	before := holds()
	if len(before) != messages {
		t.Fatalf("%d suspends, want %d", len(before), messages)
	}
	check := func(what string) {
		t.Helper()
		if n := int(f.metric("penstock_broker_messages")); n != messages {
			t.Fatalf("%s: %d are pending, want %d", what, n, messages)
		}
		after := holds()
		if len(after) != messages {
			t.Fatalf("%s: %d suspends, want %d", what, len(after), messages)
		}
		for name, at := range before {
			// On disk an instant is a whole millisecond, rounded up.
			if moved := after[name].Sub(at); moved < 0 || moved >= time.Millisecond {
				t.Fatalf("%s: %s is held until %v, want %v", what, name, after[name], at)
			}
		}
	}
	var asked struct{ topic, group string }
	_, asked.topic = f.request(http.MethodGet, "/api/v1/topics/"+topic, "")
	_, asked.group = f.request(http.MethodGet, "/api/v1/groups/"+group, "")
	for i := range times {
		for path, body := range map[string]string{"topics": asked.topic, "groups": asked.group} {
			// That it exists is no reason to touch it.
			if code, text := f.request(http.MethodPost, "/api/v1/"+path, body); code != http.StatusConflict {
				t.Errorf("POST %s is %d %s, want 409", path, code, text)
			}
		}
		f.apply(rules)
		check(fmt.Sprint("the same again, time ", i+1))
	}
	f.apply("limits: [{user: \"*\", rate: 7/s}]\n")
	check("another rate")
	f.kill()
	f.restart() // creates both again from its configuration
	check("after a restart")
	if got := f.raw().receive(time.Minute, slack); len(got) != 0 {
		t.Errorf("%d messages came out of suspended buckets", len(got))
	}
}

// TestC104_SuspendsNeverEndEarly suspends buckets for durations around edges of ticks,
// over and over and at moments of no pattern. The broker counts from the arrival of the
// call, which is later than the instant that the test takes down.
func TestC104_SuspendsNeverEndEarly(t *testing.T) {
	t.Parallel()
	const parallel, times = 25, 2 // of each duration
	durations := []time.Duration{30, 31, 50, 99, 100, 101, 999, 1000, 1001}
	n := startBroker(t, program)
	sendEach(t, n.producer(), len(durations)*parallel, len(durations)*parallel, func(i int) []byte { return []byte(strconv.Itoa(i)) })

	type suspended struct {
		at    time.Time
		times int
	}
	var mu sync.Mutex // guards the following field
	buckets := map[string]suspended{}
	late := map[time.Duration][]time.Duration{}
	worker := n.raw()
	var suspends sync.WaitGroup
	for left := len(durations) * parallel; left > 0; {
		got := worker.receive(time.Minute, enough)
		now := time.Now()
		if len(got) == 0 {
			t.Fatalf("%d buckets did not come again", left)
		}
		for _, m := range got {
			name := m.GetSystemProperties().GetLiteTopic()
			i, err := strconv.Atoi(string(m.GetBody()))
			must(t, err)
			d := durations[i%len(durations)] * time.Millisecond
			mu.Lock()
			before := buckets[name]
			mu.Unlock()
			if before.times > 0 {
				late[d] = append(late[d], now.Sub(before.at)-d)
			}
			if before.times == times {
				worker.ack(m)
				left--
				continue
			}
			suspends.Go(func() {
				<-time.After(rand.N(10 * time.Millisecond)) // no phase in common
				mu.Lock()
				buckets[name] = suspended{time.Now(), before.times + 1}
				mu.Unlock()
				worker.suspend(m, d)
			})
		}
	}
	suspends.Wait()
	for _, d := range durations {
		d *= time.Millisecond
		all := late[d]
		if len(all) != parallel*times {
			t.Errorf("%d suspends of %v, want %d", len(all), d, parallel*times)
			continue
		}
		if least := slices.Min(all); least < 0 {
			t.Errorf("a suspend of %v ended %v early", d, -least)
		}
		if p99 := quantile(all, 0.99); p99 > slack {
			t.Errorf("suspends of %v end late: p99 %v", d, p99)
		}
		t.Logf("%v: p50 %v late, p99 %v", d, quantile(all, 0.5), quantile(all, 0.99))
	}
}

// TestC122_SuspendsOfAllScopesOutliveAKill holds a bucket, a row, a column, a level and
// all, each until another instant, and kills the broker again and again before the first of them.
func TestC122_SuspendsOfAllScopesOutliveAKill(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "importance: [{user: idler, level: 3}]\n")
	f.pools(1)
	p := f.producerOf()
	f.suspended("--all", "--for", "10m")
	cells := map[string][2]string{ // by what holds them
		"all": {"free", "m0"}, "bucket": {"cell", "m0"}, "row": {"row", "m0"}, "column": {"free", "m1"}, "level": {"idler", "m0"},
	}
	for _, c := range cells {
		queue(t, p, c[0], c[1], 2)
	}
	opens := map[string]time.Time{}
	base := time.Now().Add(12 * time.Second).Truncate(time.Millisecond) // which is how it is kept
	for i, args := range [][]string{
		{"--all"}, {"--user", "cell", "--model", "m0"}, {"--user", "row"}, {"--model", "m1"}, {"--level", "3"},
	} {
		s := f.suspended(append(args, "--until", base.Add(time.Duration(i)*500*time.Millisecond).Format(time.RFC3339Nano))...)
		opens[s.Scope] = s.Until
	}
	for time.Until(base) > 5*time.Second {
		f.kill()
		f.restart()
	}
	var list admin.Suspends
	f.operate(&list, "suspends", "list")
	scopes := []string{}
	for _, s := range list.Suspends {
		scopes = append(scopes, s.Scope)
		if !s.Until.Equal(opens[s.Scope]) {
			t.Errorf("%s is held until %v after the kills, want %v", s.Scope, s.Until, opens[s.Scope])
		}
	}
	if want := []string{"all", "bucket", "row", "column", "level"}; !slices.Equal(scopes, want) {
		t.Fatalf("%v are held after the kills, want %v", scopes, want)
	}
	if !time.Now().Before(base) {
		t.Fatal("the broker was back after the suspends had ended: nothing was seen of them")
	}
	f.stub.wait("all", func(s mockmodel.Stats) bool { return s.Answered == int64(2*len(cells)) })
	for _, c := range f.stub.Calls(0) {
		for scope, cell := range cells {
			if cell != [2]string{c.User, c.Model} {
				continue
			}
			if after := c.Began.Sub(opens[scope]); after < 0 || after > soon {
				t.Errorf("%s/%s, held by its %s, came %v after the end", c.User, c.Model, scope, after)
			}
		}
	}
}
