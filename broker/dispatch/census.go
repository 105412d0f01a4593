package dispatch

// GroupUse says whether a group is in use.
type GroupUse struct {
	// Clients is the number of members: consumers that sent a request within the last three
	// minutes and have polled or subscribed. Leases is the number of messages in flight.
	Clients, Leases int
}

// GroupUse returns the use of a group; the zero value for an unknown group.
func (m *Machine) GroupUse(id GroupID) GroupUse {
	g := m.group(id)
	if g == nil {
		return GroupUse{}
	}
	return GroupUse{Clients: len(g.members), Leases: g.leases}
}

// Census counts, for each group, the messages that are retained for that group alone: every
// other group has settled them. It visits n resident buckets, beginning with number from,
// adds the counts to kept, and returns the number at which to continue, 0 after the last
// bucket. Buckets come, go and change their numbers between two calls, so the sum is
// approximate; dead messages are counted as well.
func (m *Machine) Census(from, n int, kept map[GroupID]int64) (next int) {
	to := min(from+n, len(m.all))
	for _, b := range m.all[min(from, to):to] {
		lowest, second := b.first, b.tail // second is the lowest floor of the other groups
		for c := b.first; c != nil; c = c.sibling {
			switch {
			case c == lowest:
			case c.floor < lowest.floor:
				lowest, second = c, lowest.floor
			default:
				second = min(second, c.floor)
			}
		}
		if lowest != nil && second > lowest.floor {
			kept[lowest.g.cfg.ID] += int64(min(second-lowest.floor, Offset(b.live)))
		}
	}
	if to == len(m.all) {
		return 0
	}
	return to
}
