package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// MaxMailBatch is how many mails one request sends, and how many deliveries one request
// leases or settles.
const MaxMailBatch = 512

// A Mail is a message to send. To is required.
type Mail struct {
	To          string            `json:"to" minLength:"1" maxLength:"128" doc:"agent:NAME@NODE, agent:NAME of this node or of the mesh, or topic:NAME"`
	Subject     string            `json:"subject,omitempty" maxLength:"256" doc:"of a mail to a topic: words with dots between them"`
	Class       string            `json:"class,omitempty" enum:"critical,high,normal,low" doc:"default normal"`
	Key         string            `json:"key,omitempty" maxLength:"256" doc:"ordering key: mails of one key are handled one after the other"`
	Dedupe      string            `json:"dedupe,omitempty" maxLength:"256" doc:"the sender's name for this mail, like the header Idempotency-Key: for a day or more a second one is not taken"`
	Producer    string            `json:"producer,omitempty" minLength:"32" maxLength:"32" pattern:"^[0-9a-f]{32}$" doc:"128 random bits in hexadecimal, the name of a sender that numbers its mails; given with number and id"`
	Number      uint64            `json:"number,omitempty" minimum:"1" doc:"of the mail, counted by its producer: the node takes each number once, whatever the mail: another one with a number that was used is not sent, and its answer is known; the node knows the last 4096 numbers, and refuses one before them"`
	ID          string            `json:"id,omitempty" doc:"of the mail, a new UUIDv7, in an answer also when the mail was sent again; default: the node makes one, if there is no producer"`
	TTL         Duration          `json:"ttl,omitzero" example:"24h" doc:"not delivered after this; default 7d, at most 30d"`
	Delay       Duration          `json:"delay,omitzero" example:"90s" doc:"not delivered before; not together with at"`
	At          time.Time         `json:"at,omitzero" doc:"not delivered before"`
	Type        string            `json:"type,omitempty" maxLength:"128" doc:"what it is about, for programs"`
	ContentType string            `json:"content_type,omitempty" maxLength:"128" doc:"media type of the body"`
	Body        []byte            `json:"body,omitempty" doc:"at most 256 KiB; alternative to text"`
	Stream      io.Reader         `json:"-"` // instead of Body: input of any size, read to its end when the mail is sent
	ReplyTo     string            `json:"reply_to,omitempty" maxLength:"256" doc:"the box for replies"`
	Correlation string            `json:"correlation,omitempty" maxLength:"256" doc:"what it replies to, in the requester's words"`
	Sender      string            `json:"sender,omitempty" maxLength:"128" doc:"the agent that sends it"`
	BounceTo    string            `json:"bounce_to,omitempty" maxLength:"256" doc:"the box that is told if it cannot be delivered; default reply_to, then the sender's mailbox"`
	Labels      map[string]string `json:"labels,omitempty" doc:"free labels, at most 32"`
	Trace       string            `json:"traceparent,omitempty" doc:"W3C trace context, like the header of that name; without one the mail gets a new one with the sampled flag"`
	Hops        int               `json:"hops,omitempty" minimum:"0" maximum:"16" doc:"mails that caused this one, one by one: one more than that of the mail that it answers"`
	Receipt     bool              `json:"receipt,omitempty" doc:"the node of the box signs that it has the mail: see GET /v1/mail/{id}/receipts; not together with relaxed"`
	Notify      string            `json:"notify,omitempty" enum:"done" doc:"done: bounce_to, else reply_to, else the mailbox of the sender gets a mail of type balefire.done when this one is DONE; of a mail to a mailbox that is no request"`
	Relaxed     bool              `json:"relaxed,omitempty" doc:"answer before it is fsynced: a power cut in the next 100 ms may take it"`
}

// Durabilities of a mail that was sent.
const (
	DurabilityFsynced = "fsynced"
	DurabilityRelaxed = "relaxed"
)

// A SentMail is the result of sending a mail: it is on disk here, in its box or waiting for
// the node that has the box.
type SentMail struct {
	ID         string `json:"id"`
	Box        string `json:"box" doc:"the box as its home names it"`
	State      string `json:"state" enum:"WAITING,PENDING" doc:"WAITING: in its box, which is on this node; PENDING: on its way to the node of the box"`
	Durability string `json:"durability" enum:"fsynced,relaxed"`
	Known      bool   `json:"known,omitempty" doc:"the dedupe key or the number of the producer was used before; this is the first mail with it"`
}

// A MailBatch is the answer to a batch of mails, in their order.
type MailBatch struct {
	Accepted int             `json:"accepted" doc:"how many are on disk"`
	Failed   int             `json:"failed"`
	Items    []MailBatchItem `json:"items" doc:"one for each mail, in the order they were given"`
}

// A MailBatchItem is the result of one mail of a batch.
type MailBatchItem struct {
	Status  int       `json:"status" doc:"202, or the status of the problem"`
	Mail    *SentMail `json:"mail,omitempty"`
	Problem *Problem  `json:"problem,omitempty"`
}

// Kinds of boxes.
const (
	BoxMailbox = "mailbox"
	BoxTopic   = "topic"
)

// BoxSettings are the settings of a mailbox or a topic. A nil field does not change; the
// zero value of a field means its default.
type BoxSettings struct {
	Allow     *[]string    `json:"allow,omitempty" maxItems:"64" doc:"other nodes that may send to it: peer:NAME, peer:ID, role:ROLE or *; default none"`
	AllowRead *[]string    `json:"allow_read,omitempty" maxItems:"64" doc:"other nodes that may read it, in the same form; default none"`
	Mails     *int         `json:"mails,omitempty" minimum:"0" doc:"mails that may wait; default 100000, of a topic 1000000"`
	Bytes     *int64       `json:"bytes,omitempty" minimum:"0" doc:"of their letters together; default 256 MiB, of a topic 1 GiB"`
	Age       *Duration    `json:"age,omitempty" doc:"a topic drops what is older; default 7d"`
	Interest  *bool        `json:"interest,omitempty" doc:"a topic keeps a mail until every subscription has read it, and refuses when it is full; default: it drops the oldest"`
	Lanes     *string      `json:"lanes,omitempty" enum:"shared,origin" doc:"which mails with one ordering key are handled in order: those of all senders (shared, the default) or those of each node (origin); it never changes"`
	Keep      *Duration    `json:"keep,omitempty" doc:"of a mailbox: how long mail that is done is kept to be looked at, unless its body is a large one; 0: it is gone at once; default of a new mailbox: mail.keep of the node"`
	KeepMails *int         `json:"keep_mails,omitempty" minimum:"0" doc:"how many of those at most; default 10000"`
	Draining  *bool        `json:"draining,omitempty" doc:"new mail is refused for now"`
	Seize     *Seize       `json:"seize,omitempty" doc:"makes this node, an admin, the home of a name of the mesh whose home is permanently lost, with a new and empty box"`
	JSON      *bool        `json:"json,omitempty" doc:"a mail whose body is not JSON is a dead letter at once; a body above 256 KiB is not checked"`
	Handler   *MailHandler `json:"handler,omitempty" doc:"of a mailbox: what this node does with its mail; {} removes it, and without exec and post the fields that are given change"`
}

// SubscriptionSettings are the settings of a subscription, or of a mailbox as the one
// subscription that it has. A nil field does not change; the zero value of a field means
// its default.
type SubscriptionSettings struct {
	Filter   *string   `json:"filter,omitempty" maxLength:"256" doc:"subjects: * is one word, > is the rest; default all"`
	Mode     *string   `json:"mode,omitempty" enum:"shared,exclusive,failover" doc:"shared (default): each mail goes to one of its readers; exclusive: there is one reader; failover: one reads, the next one when that ends"`
	Strategy *string   `json:"strategy,omitempty" enum:"ordered,round_robin,priority,least_loaded" doc:"which reader is given the next mail in mode shared, of those that take one: ordered (default): the oldest, as many as it takes; round_robin: each in turn; priority: the one with the highest; least_loaded: the one with the smallest part of what it takes in hand"`
	Attempts *int      `json:"attempts,omitempty" minimum:"0" maximum:"100" doc:"failed deliveries until a mail is a dead letter; default 3"`
	Lease    *Duration `json:"lease,omitempty" doc:"for how long a reader is given a mail, at most 12h; default by class: 5s critical, 10s high, 30s normal, 60s low"`
	KeyBatch *int      `json:"key_batch,omitempty" minimum:"0" maximum:"16" doc:"mails of one key that one reader is given at once; default 1"`
	OnDead   *string   `json:"on_dead,omitempty" enum:"skip,block" doc:"after a dead letter the next mail of its key is delivered (skip, the default), or waits (block)"`
	Paused   *bool     `json:"paused,omitempty" doc:"nothing is delivered"`
	Dead     *int      `json:"dead,omitempty" minimum:"0" doc:"dead letters that are kept; default 10000"`
	DeadAge  *Duration `json:"dead_age,omitempty" doc:"how long they are kept; default 30d"`
	To       *string   `json:"to,omitempty" maxLength:"256" doc:"of a topic: a box, such as agent:NAME@NODE, into which the node delivers its mail"`
	From     string    `json:"from,omitempty" doc:"where a new subscription begins: new (default), first, last (the newest of each subject), a sequence number, or a time"`
}

// MailboxSettings are the settings of a mailbox.
type MailboxSettings struct {
	Named bool `json:"named,omitempty" doc:"a mailbox of the mesh, agent:NAME: every node finds its home, this node"`
	BoxSettings
	SubscriptionSettings
}

// A Box is a mailbox or a topic of this node.
type Box struct {
	Name          string         `json:"name" doc:"agent:NAME@NODE, of the mesh agent:NAME, or topic:NAME"`
	Kind          string         `json:"kind" enum:"mailbox,topic"`
	Settings      BoxSettings    `json:"settings" doc:"with their defaults"`
	Waiting       int            `json:"waiting" doc:"mails that have not ended, leased ones too"`
	Bytes         int64          `json:"bytes" doc:"of their letters"`
	Oldest        *time.Time     `json:"oldest,omitempty" doc:"when the oldest of them was accepted"`
	Next          uint64         `json:"next" doc:"sequence number of the next mail"`
	Ended         EndedMails     `json:"ended"`
	Problem       *Note          `json:"problem,omitempty" doc:"why its handler does not run now"`
	Warnings      []Note         `json:"warnings,omitempty" doc:"which entries of its allow lists match no member"`
	Subscriptions []Subscription `json:"subscriptions" doc:"a mailbox has exactly one, without a name"`

	Accepted map[string]uint64 `json:"accepted" doc:"mails that it ever had, by class"`
}

// EndedMails counts the mails of a box that have ended, since the box was made.
type EndedMails struct {
	Done      uint64 `json:"done"`
	Dead      uint64 `json:"dead"`
	Expired   uint64 `json:"expired"`
	Cancelled uint64 `json:"cancelled"`
	Dropped   uint64 `json:"dropped" doc:"removed by the retention of a topic before every subscription had read it"`
}

// A Subscription is a reader group of a topic, or of a mailbox its only one.
type Subscription struct {
	Name     string               `json:"name"`
	Settings SubscriptionSettings `json:"settings" doc:"with their defaults"`
	Waiting  *int                 `json:"waiting,omitempty" doc:"mails that it has not read, leased ones too; counted where one box is shown"`
	Leased   int                  `json:"leased"`
	Retrying int                  `json:"retrying"`
	Dead     int                  `json:"dead"`
	Blocked  int                  `json:"blocked" doc:"ordering keys that a dead letter blocks"`
	Readers  []string             `json:"readers,omitempty"`
	Problem  *Note                `json:"problem,omitempty" doc:"why it does not deliver into its box now"`
}

// A LeaseMail asks for mail of a box. Each is leased: it must be settled before the lease
// ends, or it is delivered again.
type LeaseMail struct {
	Max      int    `json:"max,omitempty" minimum:"1" maximum:"512" doc:"default 1; there are fewer if they are large"`
	Wait     Wait   `json:"wait,omitzero" doc:"for the first mail, at most 10m; default 0s, not at all"`
	Reader   string `json:"reader,omitempty" maxLength:"64" doc:"who reads, for people and for exclusive subscriptions"`
	Priority int    `json:"priority,omitempty" doc:"of a failover subscription: the reader with the highest one has all; with the strategy priority it is given mail first"`
}

// LeasedMail is the answer to a LeaseMail.
type LeasedMail struct {
	Items []DeliveredMail `json:"items"`
}

// A DeliveredMail is a mail that was leased to a reader.
type DeliveredMail struct {
	Lease       string       `json:"lease" doc:"names this delivery when it is settled: SEQUENCE.START.NUMBER"`
	Attempt     int          `json:"attempt" doc:"1 for the first"`
	Redelivered bool         `json:"redelivered,omitempty" doc:"somebody was given it before, or may have been: it was in the box before the node was started"`
	Until       time.Time    `json:"until" doc:"when the lease ends"`
	Mail        ReceivedMail `json:"mail"`
}

// A ReceivedMail is a mail as its reader sees it.
type ReceivedMail struct {
	ID          string            `json:"id"`
	Seq         uint64            `json:"seq" doc:"in its box; 0 if it is PENDING"`
	Box         string            `json:"box"`
	From        string            `json:"from" doc:"the node that it came from"`
	FromID      string            `json:"from_id"`
	Sender      string            `json:"sender,omitempty" doc:"the agent that sent it, in the words of its node"`
	Subject     string            `json:"subject,omitempty"`
	Class       string            `json:"class"`
	Key         string            `json:"key,omitempty"`
	Type        string            `json:"type,omitempty"`
	ContentType string            `json:"content_type,omitempty"`
	Created     time.Time         `json:"created"`
	NotAfter    time.Time         `json:"not_after"`
	ReplyTo     string            `json:"reply_to,omitempty"`
	Correlation string            `json:"correlation,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Trace       string            `json:"traceparent,omitempty"`
	Hops        int               `json:"hops,omitempty" doc:"mails that caused this one, one by one; at most 16"`
	RedriveOf   string            `json:"redrive_of,omitempty" doc:"the dead letter of which it is another try"`
	FirstID     string            `json:"first_id,omitempty" doc:"the first mail of such a series"`
	BounceOf    string            `json:"bounce_of,omitempty" doc:"the mail whose end it tells: it could not be delivered, or is DONE"`
	Size        int64             `json:"size" doc:"bytes of the body"`
	Body        []byte            `json:"body,omitempty"`
	Digest      string            `json:"digest,omitempty" doc:"of a body above 256 KiB, sha256:HEX: it is not in body, and comes from GET /v1/mail/{id}/body, or for the lease of a delivery from GET /v1/mailboxes/{box}/body"`
}

// A SettleMail says what a reader did with deliveries.
type SettleMail struct {
	Ack    []string      `json:"ack,omitempty" maxItems:"512" doc:"done: the mail ends"`
	Nack   []NackMail    `json:"nack,omitempty" maxItems:"512" doc:"failed: an attempt is spent"`
	Extend []ExtendMail  `json:"extend,omitempty" maxItems:"512" doc:"the reader needs more time"`
	Defer  []DeferMail   `json:"defer,omitempty" maxItems:"512" doc:"not now: no attempt is spent"`
	Bounce []BouncedMail `json:"bounce,omitempty" maxItems:"512" doc:"back to its sender"`
}

// A NackMail gives a mail back that could not be handled.
type NackMail struct {
	Lease  string   `json:"lease"`
	Delay  Duration `json:"delay,omitzero" doc:"until the next delivery, at most 30d; default 1s, doubled with each attempt up to 5m"`
	Reason string   `json:"reason,omitempty" maxLength:"256"`
	Final  bool     `json:"final,omitempty" doc:"it can never succeed: a dead letter"`
}

// An ExtendMail extends a lease, which lasts at most 12 hours in all.
type ExtendMail struct {
	Lease string   `json:"lease"`
	For   Duration `json:"for" doc:"from now"`
}

// A DeferMail gives a mail back for a while.
type DeferMail struct {
	Lease  string   `json:"lease"`
	Delay  Duration `json:"delay,omitzero" doc:"until the next delivery, at most 30d"`
	Reason string   `json:"reason,omitempty" maxLength:"256"`
}

// A BouncedMail gives a mail back to its sender, who is told why.
type BouncedMail struct {
	Lease  string `json:"lease"`
	Reason string `json:"reason,omitempty" maxLength:"256"`
}

// SettledMail is the answer to a SettleMail.
type SettledMail struct {
	Items []SettledItem `json:"items" doc:"one for each delivery: ack, nack, extend, defer, bounce, each in its order"`
}

// Results of settling a delivery.
const (
	SettledOK         = "OK"           // it counts, and is on disk
	SettledStale      = "STALE"        // somebody else was given the mail since, or it has ended otherwise than by an acknowledgment
	SettledOutOfOrder = "OUT_OF_ORDER" // a mail before it with the same key was not acknowledged
	SettledUnknown    = "UNKNOWN"      // there was no such delivery
)

// A SettledItem is the result for one delivery.
type SettledItem struct {
	Lease string     `json:"lease"`
	Code  string     `json:"code" enum:"OK,STALE,OUT_OF_ORDER,UNKNOWN" doc:"STALE: somebody else was given the mail since, or it has ended otherwise than by an acknowledgment; OUT_OF_ORDER: a mail before it with the same key was not acknowledged; UNKNOWN: there was no such delivery"`
	Until *time.Time `json:"until,omitempty" doc:"of an extended lease: when it ends now"`
}

// A MailQuery selects mails of a box. The zero value selects all that have not ended.
type MailQuery struct {
	State   string    `json:"state,omitempty" query:"state" enum:"WAITING,LEASED,RETRYING,DEAD,KEPT" doc:"DEAD: the dead letters; KEPT: all that the box keeps, the newest first; default all but dead letters"`
	Class   string    `json:"class,omitempty" query:"class" enum:"critical,high,normal,low"`
	Key     string    `json:"key,omitempty" query:"key"`
	Subject string    `json:"subject,omitempty" query:"subject" doc:"a filter, as of a subscription"`
	Since   time.Time `json:"since,omitzero" query:"since" doc:"accepted at this time or later"`
	Until   time.Time `json:"until,omitzero" query:"until" doc:"accepted before"`
	Cursor  string    `json:"-"` // Next of the previous page
	Limit   int       `json:"-"` // of a page; default 50, at most 1000
}

// A BoxedMail is a mail in a box, as a person sees it. Looking changes nothing.
type BoxedMail struct {
	ReceivedMail
	State    string     `json:"state" enum:"PENDING,ACCEPTED,WAITING,LEASED,RETRYING,DONE,DEAD" doc:"PENDING: on its way to the node of the box; ACCEPTED: that has it, and was asked for a receipt; DONE: no subscription of the topic wants it any more"`
	Accepted time.Time  `json:"accepted"`
	Attempts int        `json:"attempts" doc:"spent"`
	Abandons int        `json:"abandons" doc:"readers that broke off"`
	Due      *time.Time `json:"due,omitempty" doc:"of a mail that is to be delivered again: when"`
	Tries    []MailTry  `json:"tries,omitempty" doc:"the newest deliveries that failed"`
	Died     *time.Time `json:"died,omitempty" doc:"of a dead letter"`
	Cause    string     `json:"cause,omitempty" doc:"of a dead letter"`
	Reason   string     `json:"reason,omitempty"`
	Stderr   string     `json:"stderr,omitempty" doc:"of a dead letter: the end of what the program wrote to standard error, or of the answer to a POST"`
	Restored bool       `json:"restored,omitempty" doc:"the node was restored from an older copy since: it may have been read, and have ended, after that copy was made"`
	Redriven bool       `json:"redriven,omitempty" doc:"it was sent again as a new mail"`

	Receipt *MailReceipt `json:"receipt,omitempty" doc:"of one mail that was asked for: what the node of its box has signed, without the letter"`
}

// A MailTry is a delivery that failed.
type MailTry struct {
	At     time.Time `json:"at"`
	Cause  string    `json:"cause"`
	Reader string    `json:"reader,omitempty"`
	Reason string    `json:"reason,omitempty"`
}

// A PurgeMail removes what waits in a box.
type PurgeMail struct {
	Limit  int    `json:"limit,omitempty" minimum:"0" doc:"the oldest so many; default all"`
	Reason string `json:"reason,omitempty" maxLength:"256" doc:"told to the senders"`
	DryRun bool   `json:"dry_run,omitempty" doc:"only count"`
}

// A PurgedMail is the result of a PurgeMail.
type PurgedMail struct {
	Mails  int  `json:"mails"`
	DryRun bool `json:"dry_run"`
}

// HandOffBox names the next home of a mailbox or topic of the mesh.
type HandOffBox struct {
	To string `json:"to" minLength:"1" maxLength:"128" doc:"name or id of the new home"`
}

// A MovedBox is a mailbox or topic of the mesh that was handed over.
type MovedBox struct {
	Box        string `json:"box"`
	Home       string `json:"home" doc:"name of the new home"`
	Generation uint64 `json:"generation" doc:"of that"`
	Mails      int    `json:"mails" doc:"that had not ended"`
	Served     bool   `json:"served" doc:"false: the new home has all of it, and serves it as soon as it has heard that it is the home"`
}

// A RedriveMail sends dead letters of a box again, as new mails.
type RedriveMail struct {
	Seqs []uint64 `json:"seqs,omitempty" maxItems:"1000" doc:"default all that were not sent again yet"`
	To   string   `json:"to,omitempty" maxLength:"128" doc:"default their own box"`
	Rate int      `json:"rate,omitempty" minimum:"0" maximum:"10000" doc:"mails a second; default 50"`
	Max  int      `json:"max,omitempty" minimum:"0" maximum:"1000" doc:"default 1000 in one request"`
}

// A RedrivenMail is the result of a RedriveMail.
type RedrivenMail struct {
	Items []MailBatchItem `json:"items" doc:"the new mails; a dead letter that was asked for and was already sent again has a problem instead, and so has the last item if it could not be sent: those behind it were not"`
	More  bool            `json:"more" doc:"there are more: repeat it"`
}

// An UnblockMail lets the mails of one ordering key go on that a dead letter blocks.
type UnblockMail struct {
	Key    string `json:"key" minLength:"1" maxLength:"256"`
	Origin string `json:"origin,omitempty" maxLength:"128" doc:"name or id of the node whose mails are blocked, if the box separates the nodes"`
}

// A SeekSubscription moves a subscription of a topic.
type SeekSubscription struct {
	To string `json:"to" minLength:"1" doc:"new, first, last (the newest of each subject), a sequence number, or a time"`
}

// A MailSpool is the mail that waits here for a box on another node.
type MailSpool struct {
	Box    string     `json:"box"`
	Home   string     `json:"home" doc:"the node of the box"`
	HomeID string     `json:"home_id"`
	Mails  int        `json:"mails"`
	Bytes  int64      `json:"bytes" doc:"of their letters"`
	Oldest *time.Time `json:"oldest,omitempty" doc:"when the oldest of them was sent"`
	Stops  []MailStop `json:"stops" doc:"why that node took no more, the newest first; empty: it refused nothing"`
}

// A MailStop says why the node of a box took no more mail of a class.
type MailStop struct {
	Class  string    `json:"class"`
	Code   string    `json:"code"`
	Detail string    `json:"detail,omitempty"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until" doc:"when it is asked again"`
}

// A MailRequest is a mail whose sender waits for the reply.
type MailRequest struct {
	Mail
	Wait      Wait     `json:"wait,omitzero" doc:"for the reply, at most 10m; default 0s, not at all"`
	ReplyFrom []string `json:"reply_from,omitempty" maxItems:"64" doc:"nodes that may reply, besides that of the box: peer:NAME, peer:ID, role:ROLE or *; default each node that is given the mail"`
}

// A MailReply is a request that was sent, and its reply.
type MailReply struct {
	SentMail
	Reply *ReceivedMail `json:"reply,omitempty" doc:"absent: none has come yet"`
}

// A NewReplyBox asks for a box for the replies to the requests of a program.
type NewReplyBox struct {
	ReplyFrom []string `json:"reply_from,omitempty" maxItems:"64" doc:"nodes that may reply: peer:NAME, peer:ID, role:ROLE or *; default each node that is told its name"`
}

// A ReplyBox is a box for replies. It is removed when nobody has read it for an hour.
type ReplyBox struct {
	Box string `json:"box" doc:"for reply_to; it is read like any mailbox"`
}

// TypeBounce is the type of a mail that tells a sender that its mail was not delivered.
const TypeBounce = "balefire.bounce"

// TypeDone is the type of a mail that tells a sender that its mail is DONE.
const TypeDone = "balefire.done"

// BouncedError tells why a mail was not delivered, in the words of its bounce. It wraps
// [ErrBounced].
func BouncedError(id string, body []byte) error {
	var u struct{ State, Cause, Reason string }
	if json.Unmarshal(body, &u) != nil || u.State == "" {
		u.State, u.Cause = "BOUNCED", "unknown"
	}
	text := u.Cause
	if u.Reason != "" {
		text += ": " + u.Reason
	}
	return fmt.Errorf("%w: mail %s is %s: %s", ErrBounced, id, u.State, text)
}
