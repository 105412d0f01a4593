package dispatch

// poolMax bounds each free list. They spare the collector the objects of buckets
// that come and go with every message.
const poolMax = 4096

// pagesMax is the same for pages of the dead, which are larger.
const pagesMax = 64

// pool recycles what the machine allocates for each message.
type pool struct {
	buckets []*bucket
	cursors []*cursor
	leases  []*lease
	pages   []*DeadPage
}

// take pops a recycled object or makes one.
func take[T any](free *[]*T) *T {
	n := len(*free)
	if n == 0 {
		return new(T)
	}
	x := (*free)[n-1]
	(*free)[n-1] = nil
	*free = (*free)[:n-1]
	return x
}

func give[T any](free *[]*T, x *T) {
	if len(*free) < poolMax {
		*free = append(*free, x)
	}
}

func (p *pool) bucket() *bucket { return take(&p.buckets) }
func (p *pool) cursor() *cursor { return take(&p.cursors) }

func (p *pool) page() *DeadPage { return take(&p.pages) }

func (p *pool) putPage(x *DeadPage) {
	*x = DeadPage{}
	if len(p.pages) < pagesMax {
		p.pages = append(p.pages, x)
	}
}

func (p *pool) putBucket(b *bucket) {
	*b = bucket{runs: b.runs[:0]}
	give(&p.buckets, b)
}

func (p *pool) putCursor(c *cursor) {
	clear(c.window)
	*c = cursor{window: c.window[:0]}
	give(&p.cursors, c)
}

func (p *pool) lease() *lease {
	l := take(&p.leases)
	l.item.Value = l
	return l
}

func (p *pool) putLease(l *lease) {
	*l = lease{}
	give(&p.leases, l)
}
