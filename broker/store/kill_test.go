//go:build unix

package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstockmq/penstock/broker/lite"
)

// childEnv makes the test binary play the process that gets killed.
const childEnv = "PENSTOCK_STORE_TEST_CHILD"

const (
	killSends   = 10_000 // of case C121
	killBuckets = 1_000  // of case C124
	killPer     = 10     // messages in each
)

func killBody(i uint64) []byte { return bytes.Repeat([]byte(strconv.FormatUint(i, 10)+" "), 20) }

// TestC121 kills the process within an instant of its last OK: all that it was told
// is written is there, bodies equal. It is the hard half of the case: AsyncFlush, in
// which nothing is ever synced, and the class Written. The broker's own test of the
// case runs the whole program.
func TestC121(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "sends" {
		sendsChild(t)
		return
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		dir := t.TempDir()
		runAndKill(t, "TestC121", "sends", dir, killSends)
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		pending := 0
		for i := range uint64(killSends) {
			m, err := s.Message(bucketID(1, i%100), i/100)
			if err != nil || !bytes.Equal(m.Body, killBody(i)) {
				t.Fatalf("round %d: message %d: %v", round, i, err)
			}
			pending++
		}
		if pending != killSends || s.Epoch() != 2 {
			t.Errorf("round %d: %d pending, epoch %d", round, pending, s.Epoch())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func sendsChild(t *testing.T) {
	t.Helper()
	s := childOpen(t, true)
	for i := range uint64(killSends) {
		id, off := bucketID(1, i%100), i/100
		class := Durability(i % 2)
		write(t, s, class, func(b *Batch) {
			b.PutMessage(id, off, &Message{Body: killBody(i)})
			b.PutBucket(&Bucket{ID: id, Name: fmt.Sprint(i % 100), Tail: off + 1})
		})
		childOK(t)
	}
	childHang(t)
}

// TestC124: acks are Written batches. After kill -9 no message is left to deliver.
func TestC124(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "acks" {
		acksChild(t)
		return
	}
	for _, clean := range []bool{false, true} {
		dir := t.TempDir()
		if clean {
			fillAndAck(t, dir)
		} else {
			runAndKill(t, "TestC124", "acks", dir, killBuckets*killPer)
		}
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		buckets := 0
		err = s.EachBucket(1, "", func(b Bucket) bool {
			buckets++
			if b.Head != killPer || b.Tail != killPer {
				t.Errorf("clean %v: bucket %s: head %d, tail %d", clean, b.Name, b.Head, b.Tail)
			}
			if ms, err := s.messages(b.ID, 0, killPer); err != nil || len(ms) > 0 {
				t.Errorf("clean %v: bucket %s: %d messages would be delivered again, %v", clean, b.Name, len(ms), err)
			}
			return true
		})
		if err != nil || buckets != killBuckets {
			t.Errorf("clean %v: %d buckets, %v", clean, buckets, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func acksChild(t *testing.T) {
	t.Helper()
	s := childOpen(t, false)
	fill(t, s)
	ack(t, s, func() { childOK(t) })
	childHang(t)
}

func fillAndAck(t *testing.T, dir string) {
	t.Helper()
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s)
	ack(t, s, func() {})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func killBucket(i, head, tail uint64) *Bucket {
	name := fmt.Sprint("u", i)
	return &Bucket{ID: bucketID(1, i), Name: name, Cell: lite.Cell{User: name}, Head: head, Tail: tail}
}

func fill(t *testing.T, s *Store) {
	t.Helper()
	write(t, s, Durable, func(b *Batch) {
		for i := range uint64(killBuckets) {
			for off := range uint64(killPer) {
				b.PutMessage(bucketID(1, i), off, message(fmt.Sprint(off)))
			}
			b.PutBucket(killBucket(i, 0, killPer))
		}
	})
}

func ack(t *testing.T, s *Store, ok func()) {
	t.Helper()
	for off := range uint64(killPer) {
		for i := range uint64(killBuckets) {
			write(t, s, Written, func(b *Batch) {
				b.DeleteMessages(bucketID(1, i), off, off+1)
				b.PutBucket(killBucket(i, off+1, killPer))
			})
			ok()
		}
	}
}

// runAndKill runs a test of this binary as a child that prints a byte for each OK,
// and kills it as soon as it has printed as many as asked for.
func runAndKill(t *testing.T, test, role, dir string, oks int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), childEnv+"="+role, childEnv+"_DIR="+dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	// The child waits on stdin, so it ends with us whatever happens.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyN(io.Discard, bufio.NewReader(stdout), int64(oks))
	if kerr := cmd.Process.Signal(syscall.SIGKILL); kerr != nil {
		t.Error(kerr)
	}
	werr := cmd.Wait()
	if err != nil || n != int64(oks) {
		t.Fatalf("the child said OK %d times of %d: %v, %v\n%s", n, oks, err, werr, stderr.String())
	}
	var exit *exec.ExitError
	if !errors.As(werr, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child was not killed: %v\n%s", werr, stderr.String())
	}
}

func childOpen(t *testing.T, async bool) *Store {
	t.Helper()
	s, err := Open(Options{Dir: os.Getenv(childEnv + "_DIR"), AsyncFlush: async, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func childOK(t *testing.T) {
	t.Helper()
	if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
		t.Fatal(err)
	}
}

// childHang keeps the process alive, its store open, until it is killed.
func childHang(t *testing.T) {
	t.Helper()
	_, err := io.Copy(io.Discard, os.Stdin)
	t.Log("the parent went away", err)
}
