package dispatch

// GroupUse says whether a group is in use.
type GroupUse struct {
	// Clients are its members: consumers that were heard of within the last three minutes
	// and have polled or subscribed. Leases are messages that are out.
	Clients, Leases int
}

// GroupUse describes a group; the zero value if it is not known.
func (m *Machine) GroupUse(id GroupID) GroupUse {
	g := m.group(id)
	if g == nil {
		return GroupUse{}
	}
	return GroupUse{Clients: len(g.members), Leases: g.leases}
}

// Census counts, for each group, the messages that are kept for it alone: every other
// group is done with them. It looks at n resident buckets from number from on, adds what
// it finds to kept, and returns the number to go on with, 0 after the last one. Between
// two calls buckets come, go and change their numbers, so the sum is not exact; neither
// are dead messages told apart.
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
