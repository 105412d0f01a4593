package dispatch

import "fmt"

// fitsPolicy checks the policy's depth and depth_bytes for the bucket's cell. They bound the
// queued messages: messages in flight do not count. Of several groups the one furthest
// behind counts.
func (m *Machine) fitsPolicy(b *bucket, r AppendRequest) error {
	depth, depthBytes := m.doc.Caps(r.Cell.User, r.Cell.Model)
	if depth > 0 && int64(b.live)+int64(len(r.Messages)) > depth { // otherwise there is room even with nothing in flight
		if n := int64(b.queuedLive()); n+int64(len(r.Messages)) > depth {
			return fmt.Errorf("%w: %q has %d messages queued of at most %d (depth)", ErrBucketFull, r.Name, n, depth)
		}
	}
	if depthBytes == 0 {
		return nil
	}
	size := int64(0)
	for _, msg := range r.Messages {
		if int64(msg.Size) > depthBytes {
			return fmt.Errorf("%w: a message of %d bytes never fits into %q, which takes %d (depth_bytes)", ErrTooLarge, msg.Size, r.Name, depthBytes)
		}
		size += int64(msg.Size)
	}
	if b.bytes+size > depthBytes {
		if n := b.bytes - b.bytesOut(); n+size > depthBytes {
			return fmt.Errorf("%w: %q has %d bytes queued of at most %d (depth_bytes)", ErrBucketBytes, r.Name, n, depthBytes)
		}
	}
	return nil
}

// queuedLive counts the messages not in flight, in the group with the most of them.
func (b *bucket) queuedLive() int {
	if b.first == nil {
		return int(b.live)
	}
	most := 0
	for c := b.first; c != nil; c = c.sibling {
		most = max(most, int(c.returned)+b.liveBetween(c.next(), b.tail))
	}
	return most
}

// bytesOut is the size of the messages in flight, in the group with the fewest bytes in
// flight. O(windows).
func (b *bucket) bytesOut() int64 {
	if b.first == nil {
		return 0
	}
	least := int64(-1)
	for c := b.first; c != nil; c = c.sibling {
		bytes := int64(0)
		for i := range c.window {
			if c.window[i].state == out {
				bytes += int64(b.runs[b.runs.find(c.floor+Offset(i))].size)
			}
		}
		if least < 0 || bytes < least {
			least = bytes
		}
	}
	return least
}
