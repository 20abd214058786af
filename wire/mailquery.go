package wire

import "net/url"

// QueryFields returns pointers to the fields of m, except its body, by their names in the query of
// a mail whose body is sent as a stream.
func (m *Mail) QueryFields() map[string]any {
	return map[string]any{
		"to": &m.To, "subject": &m.Subject, "class": &m.Class, "key": &m.Key, "dedupe": &m.Dedupe, "producer": &m.Producer, "number": &m.Number, "id": &m.ID,
		"ttl": &m.TTL, "delay": &m.Delay, "at": &m.At, "type": &m.Type, "content_type": &m.ContentType, "reply_to": &m.ReplyTo, "correlation": &m.Correlation,
		"sender": &m.Sender, "bounce_to": &m.BounceTo, "label": &m.Labels, "traceparent": &m.Trace, "hops": &m.Hops, "receipt": &m.Receipt, "notify": &m.Notify, "relaxed": &m.Relaxed,
	}
}

// Query encodes the fields of m, except its body, as the query of a stream.
func (m *Mail) Query() (url.Values, error) { return encodeQuery(m.QueryFields()) }

// MailOfQuery decodes the fields of a mail whose body is a stream.
func MailOfQuery(q url.Values) (m Mail, err error) {
	err = decodeQuery(m.QueryFields(), q)
	return m, err
}
