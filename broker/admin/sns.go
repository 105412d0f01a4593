package admin

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/penstockmq/penstock/suspend/signal"
)

const (
	// snsHeader is set by SNS on each of its requests.
	snsHeader = "X-Amz-Sns-Message-Type"
	// certificateKeep is how long a signing certificate is used before it is fetched again.
	certificateKeep = 24 * time.Hour
	maxCertificates = 16
	// maxFetches bounds the requests to SNS at once: each bad post may cause one.
	maxFetches = 4
	// maxSeen bounds the messages that are remembered against replay.
	maxSeen = 10_000
)

var (
	errTopicARN = errors.New("messages of this SNS topic are not taken")
	errUpstream = errors.New("SNS does not answer as it should")
)

// SNSOptions say what to take from Amazon SNS.
type SNSOptions struct {
	// Topics are the ARNs whose messages are taken and whose subscriptions are confirmed. None: SNS is refused.
	Topics []string
	// Client fetches signing certificates and confirms subscriptions; it follows no
	// redirect. Nil: one with a time-out and no proxy.
	Client *http.Client
	// Roots are what a signing certificate must lead to. Nil: the machine's.
	Roots *x509.CertPool
}

func isSNS(r *http.Request) bool { return r.Header.Get(snsHeader) != "" }

// snsReceiver checks that messages come from SNS, and keeps what that takes.
type snsReceiver struct {
	topics  []string       // immutable, as the following
	client  *http.Client   //
	roots   *x509.CertPool //
	fetches chan struct{}  // a token for each request under way

	mu           sync.Mutex // guards the following fields
	certificates map[string]certificate
	seen         map[string]time.Time // message id → when it can be forgotten
}

type certificate struct {
	cert  *x509.Certificate
	until time.Time
}

func newSNSReceiver(opts SNSOptions) *snsReceiver {
	client := http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
		Timeout:   alarmsMax,
	}
	if opts.Client != nil {
		client = *opts.Client
	}
	// A redirect would undo the check of the URL.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &snsReceiver{
		topics: slices.Clone(opts.Topics), client: &client, roots: opts.Roots, fetches: make(chan struct{}, maxFetches),
		certificates: make(map[string]certificate), seen: make(map[string]time.Time),
	}
}

// fromSNS takes one message of SNS. The checks that cost nothing come first: nothing is
// fetched for a message of a foreign topic.
func (s *Server) fromSNS(ctx context.Context, now time.Time, body []byte) (AlarmReport, error) {
	e, err := signal.ParseSNS(body)
	if err != nil {
		return AlarmReport{}, err
	}
	if !slices.Contains(s.alarms.sns.topics, e.TopicARN) {
		return AlarmReport{}, inField("TopicArn", fmt.Errorf("%w: %q", errTopicARN, e.TopicARN))
	}
	if err := s.alarms.sns.verify(ctx, now, e); err != nil {
		return AlarmReport{}, err
	}
	if s.alarms.sns.known(now, e.MessageID) {
		return AlarmReport{Ignored: 1}, nil // sent twice, or played back
	}
	report, err := s.takeSNS(ctx, now, e)
	if err == nil {
		s.alarms.sns.remember(now, e.MessageID)
	}
	return report, err
}

// takeSNS does what a message that SNS has signed asks for.
func (s *Server) takeSNS(ctx context.Context, now time.Time, e signal.Envelope) (AlarmReport, error) {
	switch e.Type {
	case signal.SNSSubscribe:
		if err := s.alarms.sns.confirm(ctx, e); err != nil {
			return AlarmReport{}, err
		}
		s.log.Info("SNS subscription confirmed", "topic", e.TopicARN)
		return AlarmReport{}, nil
	case signal.SNSUnsubscribe:
		s.log.Warn("SNS subscription ended, its alarms do not come any more", "topic", e.TopicARN)
		return AlarmReport{}, nil
	}
	alert, known, err := signal.ParseCloudWatch(e.Message, e.Time())
	if err != nil {
		return AlarmReport{}, err
	}
	if !known {
		return AlarmReport{Ignored: 1}, nil
	}
	from := sender{name: signal.SenderSNS + e.TopicARN, proven: true}
	if err := s.alarms.rates.admit(time.Now(), from, 1); err != nil {
		return AlarmReport{}, err
	}
	return s.takeAlerts(ctx, now, from, []signal.Alert{alert})
}

// verify refuses what SNS did not sign within the last hour.
func (n *snsReceiver) verify(ctx context.Context, now time.Time, e signal.Envelope) error {
	if err := e.CheckTime(now); err != nil {
		return err
	}
	if err := signal.CheckSNSURL("SigningCertURL", e.SigningCertURL); err != nil {
		return err
	}
	cert, err := n.certificate(ctx, now, e.SigningCertURL)
	if err != nil {
		return err
	}
	return e.Verify(cert)
}

// certificate fetches the certificate at a URL that was checked, or takes it from memory.
func (n *snsReceiver) certificate(ctx context.Context, now time.Time, url string) (*x509.Certificate, error) {
	n.mu.Lock()
	kept, ok := n.certificates[url]
	n.mu.Unlock()
	if ok && now.Before(kept.until) {
		return kept.cert, nil
	}
	file, chain, err := n.get(ctx, url, signal.MaxCertificateBytes)
	if err != nil {
		return nil, err
	}
	cert, err := signal.SNSCertificate(now, file, chain, n.roots)
	if err != nil {
		return nil, err
	}
	until := now.Add(certificateKeep)
	if cert.NotAfter.Before(until) {
		until = cert.NotAfter
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.certificates) >= maxCertificates {
		clear(n.certificates) // SNS has one for a region; so many are somebody's play
	}
	n.certificates[url] = certificate{cert: cert, until: until}
	return cert, nil
}

// confirm visits the SubscribeURL, which is what makes the subscription.
func (n *snsReceiver) confirm(ctx context.Context, e signal.Envelope) error {
	if err := signal.CheckSNSURL("SubscribeURL", e.SubscribeURL); err != nil {
		return err
	}
	_, _, err := n.get(ctx, e.SubscribeURL, maxBodyBytes)
	return err
}

// get fetches a URL of SNS. chain are the certificates that its server showed: the file
// with a signing certificate may lack the intermediate, which is often the same. Where
// SNS answers that there is no such thing, the message was made up; all else may pass.
func (n *snsReceiver) get(ctx context.Context, url string, limit int64) (body []byte, chain []*x509.Certificate, err error) {
	select {
	case n.fetches <- struct{}{}:
		defer func() { <-n.fetches }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUpstream, err)
	}
	answer, err := n.client.Do(r)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUpstream, err)
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	if answer.TLS != nil {
		chain = answer.TLS.PeerCertificates
	}
	body, err = io.ReadAll(io.LimitReader(answer.Body, limit+1))
	switch {
	case answer.StatusCode >= http.StatusBadRequest && answer.StatusCode < http.StatusInternalServerError:
		return nil, nil, fmt.Errorf("%w: SNS answers %s to its URL", signal.ErrSignature, answer.Status)
	case answer.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%w: %s", errUpstream, answer.Status)
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", errUpstream, err)
	case int64(len(body)) > limit:
		return nil, nil, fmt.Errorf("%w: more than %d bytes", errUpstream, limit)
	}
	return body, chain, nil
}

// known says whether the message was taken before. The time bound of a message makes it
// enough to remember it that long. Each process remembers its own.
func (n *snsReceiver) known(now time.Time, id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	until, ok := n.seen[id]
	return ok && now.Before(until)
}

func (n *snsReceiver) remember(now time.Time, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.seen) >= maxSeen {
		for id, until := range n.seen {
			if !now.Before(until) {
				delete(n.seen, id)
			}
		}
	}
	if len(n.seen) < maxSeen { // else the alarms' own times still order them
		n.seen[id] = now.Add(signal.ReplayMax + time.Hour)
	}
}
