package admin_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend/live"
)

const (
	snsName  = "sns.us-east-1.amazonaws.com"
	topicARN = "arn:aws:sns:us-east-1:123456789012:alarms"
)

// amazon stands in for SNS: it signs messages, and serves the certificate and the subscribe URL over TLS on loopback.
type amazon struct {
	t      *testing.T
	key    *rsa.PrivateKey
	leaf   *x509.Certificate
	roots  *x509.CertPool
	client *http.Client

	mu       sync.Mutex
	requests []string // paths, in order
	status   int      // of the answers; 0: 200
	file     []byte   // the certificate's
}

func newAmazon(t *testing.T) *amazon {
	t.Helper()
	a := &amazon{t: t, roots: x509.NewCertPool()}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	a.roots.AddCert(a.issue(root, root, rootKey.Public(), rootKey))
	if a.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	leaf := *root
	leaf.SerialNumber, leaf.Subject.CommonName, leaf.IsCA, leaf.DNSNames = big.NewInt(2), snsName, false, []string{snsName}
	a.leaf = a.issue(&leaf, root, a.key.Public(), rootKey)
	a.file = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.leaf.Raw})

	server := httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{a.leaf.Raw}, PrivateKey: a.key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: a.roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	a.client = &http.Client{Transport: transport}
	return a
}

func (a *amazon) issue(template, parent *x509.Certificate, public any, key crypto.Signer) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

func (a *amazon) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, r.Method+" "+r.URL.String())
	if a.status == http.StatusFound {
		w.Header().Set("Location", "https://"+snsName+"/elsewhere") // a host that is reached, or nobody would see that it was followed
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
		return
	}
	if strings.HasSuffix(r.URL.Path, ".pem") {
		_, _ = w.Write(a.file)
		return
	}
	fmt.Fprint(w, "<ConfirmSubscriptionResponse/>")
}

// asked returns the requests since the last call.
func (a *amazon) asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.requests
	a.requests = nil
	return requests
}

func (a *amazon) answer(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

// message makes a signed one; change comes before the signature.
func (a *amazon) message(kind, id, text string, change map[string]string) map[string]string {
	a.t.Helper()
	m := map[string]string{
		"Type": kind, "MessageId": id, "TopicArn": topicARN, "Message": text,
		"Timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "2",
		"SigningCertURL": "https://" + snsName + "/SimpleNotificationService-1.pem",
	}
	signed := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if kind != "Notification" {
		m["Token"], m["SubscribeURL"] = "token", "https://"+snsName+"/?Action=ConfirmSubscription&Token=token"
		signed = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	maps.Copy(m, change)
	var b strings.Builder
	for _, name := range signed {
		if value, ok := m[name]; ok {
			b.WriteString(name + "\n" + value + "\n")
		}
	}
	hash, sum := crypto.SHA256, []byte(nil)
	if m["SignatureVersion"] == "1" {
		digest := sha1.Sum([]byte(b.String()))
		hash, sum = crypto.SHA1, digest[:]
	} else {
		digest := sha256.Sum256([]byte(b.String()))
		sum = digest[:]
	}
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.key, hash, sum)
	if err != nil {
		a.t.Fatal(err)
	}
	m["Signature"] = base64.StdEncoding.EncodeToString(signature)
	return m
}

// cloudWatch is the text of an alarm's notification.
func cloudWatch(state string, changed time.Time) string {
	return fmt.Sprintf(`{"AlarmName":"Busy","AlarmArn":"arn:aws:cloudwatch:us-east-1:1:alarm:Busy","NewStateValue":%q,"NewStateReason":"why",
		"StateChangeTime":%q,"Region":"US East","Trigger":{"MetricName":"m","Dimensions":[{"name":"model","value":"m1"}]}}`,
		state, changed.UTC().Format("2006-01-02T15:04:05.000-0700"))
}

func newSNSFixture(t *testing.T) (*amazon, *alarmFixture) {
	t.Helper()
	a := newAmazon(t)
	return a, newAlarmFixture(t, func(o *admin.Options) {
		o.SNS = admin.SNSOptions{Topics: []string{topicARN}, Client: a.client, Roots: a.roots}
		o.AlarmToken = "secret" // SNS cannot show one, and need not
	})
}

// post sends as SNS does: as text, with its own header, by whatever host name.
func (f *alarmFixture) post(m map[string]string) (int, string) {
	f.t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.do("POST", "/v1/alarms", string(b), "Content-Type: text/plain; charset=UTF-8", "X-Amz-Sns-Message-Type: "+m["Type"],
		"Host: alarms.example.com")
}

func (f *alarmFixture) wantPost(m map[string]string, status int, answer string) {
	f.t.Helper()
	if got, body := f.post(m); got != status || !strings.Contains(body, answer) {
		f.t.Errorf("%s %s: %d %s, want %d %s", m["Type"], m["MessageId"], got, body, status, answer)
	}
}

func TestSNSSubscriptionIsConfirmed(t *testing.T) {
	a, f := newSNSFixture(t)
	f.wantPost(a.message("SubscriptionConfirmation", "1", "You have chosen", nil), 200, `"raised":0`)
	want := "[GET /SimpleNotificationService-1.pem GET /?Action=ConfirmSubscription&Token=token]"
	if got := fmt.Sprint(a.asked()); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	f.wantPost(a.message("UnsubscribeConfirmation", "2", "You have chosen", map[string]string{"SignatureVersion": "1"}), 200, `"raised":0`)
	if got := a.asked(); len(got) != 0 {
		t.Errorf("an end of the subscription was undone, or the certificate fetched again: %v", got)
	}
}

func TestSNSAlarm(t *testing.T) {
	for _, version := range []string{"1", "2"} {
		a, f := newSNSFixture(t)
		v := map[string]string{"SignatureVersion": version, "Subject": `ALARM: "Busy" in US East`}
		now := time.Now().Add(-2 * time.Second)
		raise := a.message("Notification", "1", cloudWatch("ALARM", now), v)
		f.wantPost(raise, 200, `"raised":1`)
		all := f.store.All()
		if len(all) != 1 || all[0].Permille != 300 || all[0].Target.Name != "m1" || all[0].Reason != "Busy: why" {
			t.Fatalf("%+v", all)
		}
		f.wantPost(a.message("Notification", "2", cloudWatch("INSUFFICIENT_DATA", now.Add(time.Second)), v), 200, `"ignored":1`)
		if got := f.store.All(); got[0] != all[0] {
			t.Errorf("missing data changed it: %+v", got)
		}
		f.wantPost(a.message("Notification", "3", cloudWatch("OK", now.Add(time.Second)), v), 200, `"resolved":1`)
		held := f.store.All()
		if len(held) != 1 || held[0].Permille != 300 || held[0].Until.After(now.Add(31*time.Second)) {
			t.Errorf("held down: %+v", held)
		}
		// Played back, and overtaken by the OK on its way.
		f.wantPost(raise, 200, `"ignored":1`)
		f.wantPost(a.message("Notification", "4", cloudWatch("ALARM", now), v), 200, `"ignored":1`)
		if got := f.store.All(); len(got) != 1 || got[0] != held[0] {
			t.Errorf("%+v, want %+v", got, held)
		}
		if got := a.asked(); len(got) != 1 {
			t.Errorf("the certificate was fetched %d times", len(got))
		}
	}
}

func TestSNSRefusals(t *testing.T) {
	alarm := cloudWatch("ALARM", time.Now())
	stamp := func(d time.Duration) map[string]string {
		return map[string]string{"Timestamp": time.Now().Add(d).UTC().Format(time.RFC3339)}
	}
	for _, tc := range []struct {
		name    string
		kind    string
		before  map[string]string // it is signed
		after   map[string]string // it is signed
		status  int
		code    string
		fetches int
	}{
		{"foreign topic", "", map[string]string{"TopicArn": "arn:aws:sns:us-east-1:666:x"}, nil, 403, "topic_not_allowed", 0},
		{"old", "", stamp(-61 * time.Minute), nil, 403, "invalid_signature", 0},
		{"from the future", "", stamp(10 * time.Minute), nil, 403, "invalid_signature", 0},
		{"certificate elsewhere", "", map[string]string{"SigningCertURL": "https://evil.example/x.pem"}, nil, 403, "SigningCertURL", 0},
		{"certificate without TLS", "", map[string]string{"SigningCertURL": "http://" + snsName + "/x.pem"}, nil, 403, "SigningCertURL", 0},
		{"certificate in a bucket", "", map[string]string{"SigningCertURL": "https://x.s3.amazonaws.com/x.pem"}, nil, 403, "SigningCertURL", 0},
		{"forged", "", nil, map[string]string{"Message": cloudWatch("OK", time.Now())}, 403, "Signature", 1},
		{"forged confirmation", "SubscriptionConfirmation", nil, map[string]string{"SubscribeURL": "https://" + snsName + "/?other"}, 403, "Signature", 1},
		{"confirmation elsewhere", "SubscriptionConfirmation", map[string]string{"SubscribeURL": "https://evil.example/"}, nil, 403, "SubscribeURL", 1},
		{"not an alarm", "", map[string]string{"Message": "hello"}, nil, 400, "Message: ", 1},
		{"unknown state", "", map[string]string{"Message": `{"AlarmName":"x","NewStateValue":"BAD"}`}, nil, 400, "Message.NewStateValue", 1},
		{"no envelope", "", nil, map[string]string{"Type": "Other"}, 400, "Type", 0},
		{"unknown version", "", map[string]string{"SignatureVersion": "3"}, nil, 400, "SignatureVersion", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, f := newSNSFixture(t)
			kind := tc.kind
			if kind == "" {
				kind = "Notification"
			}
			m := a.message(kind, "1", alarm, tc.before)
			maps.Copy(m, tc.after)
			f.wantPost(m, tc.status, tc.code)
			if got := a.asked(); len(got) != tc.fetches {
				t.Errorf("asked for %v", got)
			}
			if all := f.store.All(); len(all) != 0 {
				t.Errorf("published %+v", all)
			}
		})
	}
}

// TestSNSMessagesOutOfTurn: an OK that an ALARM has overtaken ends nothing, and a message that is played back when its
// signal is long gone raises it no more.
func TestSNSMessagesOutOfTurn(t *testing.T) {
	a, f := newSNSFixture(t)
	now := time.Now().Add(-10 * time.Second)
	raise := a.message("Notification", "1", cloudWatch("ALARM", now), nil)
	f.wantPost(raise, 200, `"raised":1`)
	all := f.store.All()
	f.wantPost(a.message("Notification", "2", cloudWatch("OK", now.Add(-time.Second)), nil), 200, `"ignored":1`)
	if got := f.store.All(); len(got) != 1 || got[0] != all[0] {
		t.Errorf("an older OK left %+v, want %+v", got, all)
	}
	if err := f.store.Clear(t.Context(), all[0].Target, all[0].Source); err != nil {
		t.Fatal(err)
	}
	f.wantPost(raise, 200, `"ignored":1`)
	if got := f.store.All(); len(got) != 0 {
		t.Errorf("played back, it raised %+v", got)
	}
}

// TestSNSIsAskedToRepeat: what may succeed the next time is 5xx, and then does.
func TestSNSIsAskedToRepeat(t *testing.T) {
	a, f := newSNSFixture(t)
	m := a.message("Notification", "1", cloudWatch("ALARM", time.Now()), nil)
	a.answer(http.StatusServiceUnavailable)
	f.wantPost(m, 502, "sns_unavailable")
	a.answer(http.StatusNotFound)
	f.wantPost(m, 403, "invalid_signature")
	a.asked()
	a.answer(http.StatusFound) // could lead anywhere
	f.wantPost(m, 502, "sns_unavailable")
	if got := a.asked(); len(got) != 1 {
		t.Errorf("a redirect was followed: %v", got)
	}
	a.answer(0)
	f.store.err = live.ErrDisconnected
	f.wantPost(m, 503, "nats_unavailable")
	f.store.err = nil
	f.wantPost(m, 200, `"raised":1`)
	confirm := a.message("SubscriptionConfirmation", "2", "x", nil)
	a.answer(http.StatusInternalServerError)
	f.wantPost(confirm, 502, "sns_unavailable")
	a.answer(0)
	f.wantPost(confirm, 200, `"raised":0`)
}

// TestSNSCertificateMustLeadToARoot: a certificate on SNS's own host is not enough.
func TestSNSCertificateMustLeadToARoot(t *testing.T) {
	a, f := newSNSFixture(t)
	own, err := x509.ParseCertificate(a.leaf.Raw)
	if err != nil {
		t.Fatal(err)
	}
	own.SerialNumber, own.SignatureAlgorithm = big.NewInt(9), x509.SHA256WithRSA
	self := a.issue(own, own, a.key.Public(), a.key)
	a.file = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: self.Raw})
	f.wantPost(a.message("Notification", "1", cloudWatch("ALARM", time.Now()), nil), 403, "certificate")
}

// TestSNSIsOffByDefault: without a topic nothing of SNS is taken, and nothing fetched.
func TestSNSIsOffByDefault(t *testing.T) {
	a := newAmazon(t)
	f := newAlarmFixture(t, func(o *admin.Options) { o.SNS.Client = a.client })
	f.wantPost(a.message("Notification", "1", cloudWatch("ALARM", time.Now()), nil), 403, "topic_not_allowed")
	if got := a.asked(); len(got) != 0 {
		t.Errorf("asked for %v", got)
	}
}
