package broker

import "errors"

// The conditions a caller of this package can tell apart with errors.Is.
// broker/rpc maps each to a RocketMQ code, broker/admin to an HTTP status.
var (
	// ErrTopicNotFound: no parent topic of that name, and it may not be created on demand.
	ErrTopicNotFound = errors.New("parent topic not found")
	// ErrGroupNotFound: no consumer group of that name, and it may not be created on demand.
	ErrGroupNotFound = errors.New("consumer group not found")
	// ErrGroupBound: the group reads another parent topic than the one the request names.
	ErrGroupBound = errors.New("consumer group is bound to another parent topic")
	// ErrExists: a topic or group of that name is there already.
	ErrExists = errors.New("already exists")
	// ErrInUse: a topic that groups are bound to cannot be deleted.
	ErrInUse = errors.New("in use")
	// ErrInvalidHandle: a receipt or recall handle that no broker of this kind wrote.
	ErrInvalidHandle = errors.New("invalid handle")
	// ErrStaleHandle: the message is out again under a newer lease, or gone.
	ErrStaleHandle = errors.New("stale receipt handle")
	// ErrInvalidArgument: a value outside its limits; the text names field, fault and limit.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrDeadlinePassed: the deadline of a message to send has passed, by the broker's clock.
	ErrDeadlinePassed = errors.New("deadline has passed")
	// ErrBodyTooLarge: a message body over Options.MaxBodyBytes, or over the policy's
	// depth_bytes for its cell.
	ErrBodyTooLarge = errors.New("message body too large")
	// ErrBucketFull: the bucket holds its maximum of messages, of its topic's settings or of
	// the policy.
	ErrBucketFull = errors.New("bucket is full")
	// ErrBucketBytes: the bucket holds its maximum of body bytes.
	ErrBucketBytes = errors.New("bucket is full in bytes")
	// ErrTooManyBuckets: the parent topic has its maximum of buckets.
	ErrTooManyBuckets = errors.New("too many buckets under the parent topic")
	// ErrTooManyUserBuckets: the user has its maximum of buckets under the parent topic.
	ErrTooManyUserBuckets = errors.New("too many buckets of one user under the parent topic")
	// ErrTooManyWaiters: the parent topic has its maximum of parked polls.
	ErrTooManyWaiters = errors.New("too many waiting polls")
	// ErrTooManyHolds: the group has the maximum number of suspends that workers may set by name.
	ErrTooManyHolds = errors.New("too many suspends in the group")
	// ErrSubscriptionQuota: a client or the topic has its maximum of lite subscriptions.
	ErrSubscriptionQuota = errors.New("lite subscription quota exceeded")
	// ErrNotQueued: the message to recall is being processed or is gone.
	ErrNotQueued = errors.New("message is not queued any more")
	// ErrBucketNotFound: no bucket of that name under the parent topic.
	ErrBucketNotFound = errors.New("bucket not found")
	// ErrScanLimit: a search gave up before it had looked at everything.
	ErrScanLimit = errors.New("too much to search")
	// ErrDiskFull: the free space on the volume of the store is below the reserve. The
	// condition ends when messages are settled or purged, or when an operator frees space.
	ErrDiskFull = errors.New("disk is nearly full")
	// ErrBusy: the owner loop's queue is full; try again.
	ErrBusy = errors.New("broker is busy")
	// ErrClosed: the broker is stopping, or its store failed.
	ErrClosed = errors.New("broker is closed")
)
