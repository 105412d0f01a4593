package signal

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// cloudWatch is the message of a CloudWatch alarm on its way through SNS.
type cloudWatch struct {
	AlarmName       string `json:"AlarmName"`
	AlarmARN        string `json:"AlarmArn"`
	AccountID       string `json:"AWSAccountId"`
	NewStateValue   string `json:"NewStateValue"`
	NewStateReason  string `json:"NewStateReason"`
	StateChangeTime string `json:"StateChangeTime"`
	Region          string `json:"Region"`
	Trigger         struct {
		MetricName string          `json:"MetricName"`
		Namespace  string          `json:"Namespace"`
		Dimensions json.RawMessage `json:"Dimensions"` // a list; an alarm of an expression has none
	} `json:"Trigger"`
}

// stateTime is how CloudWatch writes an instant in a notification.
const stateTime = "2006-01-02T15:04:05.999-0700"

// ParseCloudWatch reads the message of a CloudWatch alarm. sent is when SNS sent it. The labels are alertname, account,
// region, namespace, metric and the dimensions of the metric under their own names; those five are never taken from a
// dimension. known is false for the state INSUFFICIENT_DATA: that the metric is missing says neither that the load is back
// to normal nor that it is not, so what the alarm said before holds until it ends by itself.
// Errors wrap ErrAlert and name the field.
func ParseCloudWatch(message string, sent time.Time) (a Alert, known bool, err error) {
	var c cloudWatch
	if err := decode([]byte(message), &c); err != nil {
		return Alert{}, false, fmt.Errorf("Message: %w", err) //nolint:staticcheck // the field's own name
	}
	if c.AlarmName == "" {
		return Alert{}, false, fmt.Errorf("%w: Message.AlarmName: is missing", ErrAlert)
	}
	switch c.NewStateValue {
	case "ALARM", "OK":
	case "INSUFFICIENT_DATA":
		return Alert{}, false, nil
	default:
		return Alert{}, false, fmt.Errorf("%w: Message.NewStateValue: is %q, want ALARM, OK or INSUFFICIENT_DATA", ErrAlert, c.NewStateValue)
	}
	changed, err := time.Parse(stateTime, c.StateChangeTime)
	if err != nil || changed.After(sent) {
		changed = sent
	}
	a = Alert{Summary: cut(c.NewStateReason), Starts: changed, Changed: changed, Resolved: c.NewStateValue == "OK"}
	if a.Resolved {
		a.Ends = changed
	}
	if a.Labels, err = c.labels(); err != nil {
		return Alert{}, false, err
	}
	identity := map[string]string{"arn": c.AlarmARN}
	if c.AlarmARN == "" {
		identity = map[string]string{"account": c.AccountID, "region": c.Region, "name": c.AlarmName}
	}
	a.Fingerprint = fingerprint(identity)
	return a, true, nil
}

func (c *cloudWatch) labels() (map[string]string, error) {
	// The names are upper case in CloudWatch's API and lower case in its notifications; encoding/json takes both.
	var dimensions []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	if len(c.Trigger.Dimensions) > 0 {
		if err := json.Unmarshal(c.Trigger.Dimensions, &dimensions); err != nil {
			return nil, fmt.Errorf("%w: Message.Trigger.Dimensions: want a list of name and value", ErrAlert)
		}
	}
	if len(dimensions) > MaxLabels {
		return nil, fmt.Errorf("%w: Message.Trigger.Dimensions: has %d, the limit is %d", ErrAlert, len(dimensions), MaxLabels)
	}
	labels := make(map[string]string, len(dimensions)+5)
	for _, d := range dimensions {
		labels[strings.TrimSpace(d.Name)] = d.Value
	}
	for name, value := range map[string]string{
		"alertname": c.AlarmName, "account": c.AccountID, "region": c.Region,
		"namespace": c.Trigger.Namespace, "metric": c.Trigger.MetricName,
	} {
		if delete(labels, name); value != "" {
			labels[name] = value
		}
	}
	return labels, nil
}
