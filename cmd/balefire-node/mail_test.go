package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/wire"
)

var update = flag.Bool("update", false, "write testdata/mail.help")

const shownMailbox = `
mails      7 waiting  4.0 KiB  the oldest came 60s ago
ended      80 done  2 dead  1 expired  0 cancelled
delivery   2 leased  1 retrying
readers    w1, unnamed
dead       2 dead letters: balefire-node dlq ls --mailbox agent:ceo@here
blocked    1 keys, by dead letters: balefire-node mailbox unblock agent:ceo@here KEY
limits     100000 mails  256 MiB
lanes      origin
mode       shared
on dead    skip
attempts   3
lease      by class: critical 5s, high 10s, normal 30s, low 60s
key batch  2
keeps      10000 dead letters for 30d
allow      peer:laptop, role:work
allow read programs of this node only
`

const shownTopic = `
topic:orders  open
mails      7 waiting  4.0 KiB
ended      80 done  0 dead  0 expired  0 cancelled  3 dropped
next       number 90
limits     1000000 mails  1.0 GiB
age        7d
interest   a mail is kept until every subscription has read it
allow      programs of this node only
allow read *

` + shownSubs

const shownSubs = `SUBSCRIPTION          STATE  FILTER  MODE    WAITING  LEASED  RETRYING  DEAD  BLOCKED  READERS
topic:orders/billing  open   eu.>    shared        5       2         0     1        0  -
`

const shownSub = `
topic:orders/billing  open
mails      5 waiting
delivery   2 leased  0 retrying
dead       1 dead letters: balefire-node dlq ls --mailbox topic:orders/billing
filter     eu.>
mode       shared
on dead    skip
attempts   3
lease      2m
key batch  2
keeps      10000 dead letters for 30d
`

// A commandCase is a command line, what the node is asked and what is written.
type commandCase struct {
	line       string
	code       int
	call, want string // "*": not checked
	errs       string // a part of what is written to standard error
}

func runCases(t *testing.T, tests []commandCase) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			n := newMailNode()
			code, out, errs := command(t, n, words(tt.line)...)
			if calls := strings.Join(n.Requests(), "; "); code != tt.code || tt.call != "*" && calls != tt.call || !strings.Contains(errs, tt.errs) {
				t.Errorf("%d, want %d; the node was asked %q, want %q\n%s", code, tt.code, calls, tt.call, errs)
			}
			if tt.want != "*" {
				same(t, out, tt.want)
			}
		})
	}
}

// words splits a line at spaces; one in quotes is part of a word.
func words(line string) (out []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

func TestMailboxes(t *testing.T) {
	runCases(t, []commandCase{
		{"mailbox", exitOK, "GET /v1/mailboxes?limit=1000", `
MAILBOX          STATE  WAITING  LEASED  RETRYING  DEAD  OLDEST  READERS
agent:ceo@here   open         7       2         1     2     60s  w1, unnamed
agent:desk@here  open         0       0         0     0       -  -
`, ""},
		{"mailbox ls -o wide", exitOK, "GET /v1/mailboxes?limit=1000", `
MAILBOX          STATE  WAITING  LEASED  RETRYING  DEAD  OLDEST  READERS      SIZE     BLOCKED  DONE  EXPIRED  CANCELLED  ALLOW                   ALLOW READ
agent:ceo@here   open         7       2         1     2     60s  w1, unnamed  4.0 KiB  1        80    1        0          peer:laptop, role:work  -
agent:desk@here  open         0       0         0     0       -  -            0 B      0        0     0        0          -                       -
`, ""},
		{"mailbox show ceo", exitOK, "GET /v1/mailboxes/ceo", "agent:ceo@here  open" + shownMailbox, ""},
		{"mailbox show new", exitNotFound, "GET /v1/mailboxes/new", "", "error: not found\n"},
		{"mailbox add new1 --allow peer:laptop --attempts 5 --lease 2m", exitOK, `GET /v1/mailboxes/new1; PUT /v1/mailboxes/new1 {"allow":["peer:laptop"],"attempts":5,"lease":"2m"}`, "*", "agent:new1@here: created"},
		{"mailbox add new1 --json", exitOK, `GET /v1/mailboxes/new1; PUT /v1/mailboxes/new1 {"json":true}`, "*", "created"},
		{"mailbox set ceo --json=false", exitOK, `GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"json":false}`, "*", "changed"},
		{"mailbox add new1 --named", exitOK, `GET /v1/mailboxes/new1; PUT /v1/mailboxes/new1 {"named":true}`, "*", "created"},
		{"mailbox add ceo --named", exitRefused, `GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"named":true}`, "", "own"},
		{"mailbox add mesh --named", exitRefused, "GET /v1/mailboxes/mesh", "", "agent:mesh exists: change it with balefire-node mailbox set"},
		{"mailbox set ceo --named", exitUsage, "", "", "unknown flag"},
		{"mailbox add ceo", exitRefused, "GET /v1/mailboxes/ceo", "", "agent:ceo@here exists: change it with balefire-node mailbox set"},
		{"mailbox set ceo --allow= --mails 0 --bytes 64MiB --draining=false --lease 0 --dead-age 0", exitOK,
			`GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"allow":[],"mails":0,"bytes":67108864,"draining":false,"lease":"","dead_age":""}`, "agent:ceo@here  open" + shownMailbox, "agent:ceo@here: changed"},
		{"mailbox set ceo --allow-read peer:laptop,* --lanes origin --mode failover --key-batch 3 --on-dead block --dead 9 --dead-age 7d", exitOK,
			`GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"allow_read":["peer:laptop","*"],"lanes":"origin","mode":"failover","key_batch":3,"on_dead":"block","dead":9,"dead_age":"7d"}`, "*", ""},
		{"mailbox set ceo --keep 7d --keep-mails 50", exitOK, `GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"keep":"7d","keep_mails":50}`, "*", ""},
		{"mailbox set ceo --keep 0", exitOK, `GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"keep":""}`, "*", ""},
		{"mailbox set desk --seize --from laptop --accept-loss --allow *", exitOK, `PUT /v1/mailboxes/desk {"allow":["*"],"seize":{"from":"laptop","accept_loss":true}}`, "*", "seized: this node is its home"},
		{"mailbox set desk --seize --from laptop", exitUsage, "", "", "only laptop has of it"},
		{"mailbox set desk --seize --accept-loss", exitUsage, "", "", "--from is missing"},
		{"mailbox set desk --from laptop", exitUsage, "", "", "go with --seize"},
		{"mailbox set ceo --keep long", exitUsage, "", "", "--keep"},
		{"topic set orders --seize --from laptop --accept-loss", exitOK, `PUT /v1/topics/orders {"seize":{"from":"laptop","accept_loss":true}}`, "*", "seized: this node is its home"},
		{"topic set orders --seize", exitUsage, "", "", "--from is missing"},
		{"topic set orders --keep 7d", exitUsage, "", "", "unknown flag"},
		{"mailbox set ceo --strategy round_robin", exitOK, `GET /v1/mailboxes/ceo; PUT /v1/mailboxes/ceo {"strategy":"round_robin"}`, "*", ""},
		{"mailbox set new --attempts 5", exitNotFound, "GET /v1/mailboxes/new", "", ""},
		{"mailbox set ceo", exitUsage, "", "", "nothing to set"},
		{"mailbox set ceo --lease soon", exitUsage, "", "", "--lease"},
		{"mailbox set ceo --dead-age -1s", exitUsage, "", "", "--dead-age"},
		{"mailbox set ceo --attempts 101", exitUsage, "", "", "from 0 to 100"},
		{"mailbox set ceo --key-batch 17", exitUsage, "", "", "from 0 to 16"},
		{"mailbox set ceo --mails -1", exitUsage, "", "", "from 0 to 16777216"},
		{"mailbox set ceo --bytes many", exitUsage, "", "", "is not a size"},
		{"mailbox pause ceo", exitOK, "POST /v1/mailboxes/ceo/pause", "agent:ceo@here  paused, draining" + shownMailbox, "paused; new mail waits"},
		{"mailbox resume ceo", exitOK, "POST /v1/mailboxes/ceo/resume", "agent:ceo@here  open" + shownMailbox, "resumed"},
		{"mailbox purge ceo", exitUsage, "", "", "purge ceo cannot be undone: add --yes"},
		{"mailbox purge ceo --dry-run", exitOK, `POST /v1/mailboxes/ceo/purge {"dry_run":true}`, "would remove 3 mails\n", ""},
		{"mailbox purge ceo --yes --limit 3 --reason old", exitOK, `POST /v1/mailboxes/ceo/purge {"limit":3,"reason":"old"}`, "removed 3 mails\n", ""},
		{"mailbox purge ceo --limit -3", exitUsage, "", "", "--limit"},
		{"mailbox unblock ceo order-7", exitOK, `POST /v1/mailboxes/ceo/unblock {"key":"order-7"}`, "", "ceo: the mails of key order-7 go on"},
		{"mailbox unblock topic:orders/billing k --origin laptop", exitOK, `POST /v1/topics/topic:orders/subscriptions/billing/unblock {"key":"k","origin":"laptop"}`, "", ""},
		{"mailbox unblock ceo", exitUsage, "", "", "and a key"},
		{"mailbox rm ceo", exitUsage, "", "", "remove ceo cannot be undone"},
		{"mailbox rm ceo --yes", exitOK, "DELETE /v1/mailboxes/ceo", "", "ceo: removed"},
		{"mailbox rm", exitUsage, "", "", "takes the name of a mailbox"},
	})
}

func TestMails(t *testing.T) {
	const listed = `
NUMBER  ID                  STATE    CLASS  KEY      TYPE   FROM    AGE  TRIES  SIZE  REASON
    88  01a20c7e-5b1f-7d12  WAITING  high   order-7  order  laptop  60s      1  11 B  nacked: rate limit
`
	const dead = `
NUMBER  ID                  STATE  CLASS  KEY      TYPE   FROM    AGE  TRIES  SIZE  REASON
    88  01a20c7e-5b1f-7d12  DEAD   high   order-7  order  laptop  60s      1  11 B  final: never works
`
	runCases(t, []commandCase{
		{"mail ls ceo", exitOK, "GET /v1/mailboxes/ceo/mails?limit=50", listed, "there are more: use --cursor 99 or --all"},
		{"mail ls ceo --all", exitOK, "GET /v1/mailboxes/ceo/mails?limit=1000", listed, ""},
		{"mail ls ceo --state dead --class high --key k --since 1h --until 2026-11-20T11:59:00Z --limit 7 --cursor 88", exitOK,
			"GET /v1/mailboxes/ceo/mails?class=high&cursor=88&key=k&limit=7&since=2026-11-20T11%3A00%3A00Z&state=DEAD&until=2026-11-20T11%3A59%3A00Z", dead, ""},
		{"mail ls topic:orders/billing --subject 'eu.>' --all -o jsonl", exitOK, "GET /v1/topics/topic:orders/subscriptions/billing/mails?limit=1000&subject=eu.%3E", "*", ""},
		{"mail ls topic:orders", exitUsage, "", "", `"topic:orders" is a topic: name one of its subscriptions, as in topic:orders/billing`},
		{"mail ls ceo/x", exitUsage, "", "", "use NAME for a mailbox, or topic:TOPIC/SUBSCRIPTION"},
		{"mail ls ''", exitUsage, "", "", "the name of a mailbox is empty"},
		{"mail ls", exitUsage, "", "", "takes a mailbox, or topic:TOPIC/SUBSCRIPTION"},
		{"mail ls ceo --state done", exitUsage, "", "", "--state \"done\": it must be waiting, leased, retrying or dead"},
		{"mail history ceo --all", exitOK, "GET /v1/mailboxes/ceo/mails?limit=1000&state=KEPT", listed, ""},
		{"mail history topic:orders --since 1h --limit 7", exitOK, "GET /v1/topics/topic:orders/mails?limit=7&since=2026-11-20T11%3A00%3A00Z&state=KEPT", "*", "there are more: use --cursor 99 or --all"},
		{"mail history topic:orders/billing", exitUsage, "", "", "a subscription keeps nothing of its own, see mail ls topic:orders/billing"},
		{"mail history", exitUsage, "", "", "takes a mailbox or a topic"},
		{"mail watch -o json", exitUsage, "", "", "mail watch never ends"},
		{"mail watch a b", exitUsage, "", "", "a mailbox or a topic, or nothing for all"},
		{"mail ls ceo --limit 0", exitUsage, "", "", "--limit 0"},
		{"mail ls ceo --since soon", exitUsage, "", "", "--since"},
		{"mail show 01A20C7E", exitOK, "GET /v1/mail/01A20C7E", `
mail      01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91   class high   from laptop
box       agent:ceo@here   number 88
state     LEASED   attempts 1   abandons 0   ttl 60m left
accepted  60s ago
key       order-7
type      order
sender    boss
reply to  agent:boss@laptop
regarding c-1
trace     00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
FAILED        CAUSE   READER  REASON
` + testStart.Local().Add(-1e9).Format("15:04:05.000") + `  nacked  w1      rate limit
body      11 B
  │ hello
  │ there
`, ""},
		{"mail show 01a20c7e --body", exitOK, "GET /v1/mail/01a20c7e", "hello\nthere", ""},
		{"mail show 01a30c7e", exitOK, "GET /v1/mail/01a30c7e", `
mail      01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91   class high   from laptop
box       agent:ceo@laptop   on its way: balefire-node mail outgoing
state     PENDING   attempts 0   abandons 0   ttl 60m left
accepted  60s ago
key       order-7
type      order
sender    boss
reply to  agent:boss@laptop
regarding c-1
trace     00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
body      11 B
  │ hello
  │ there
`, ""},
		{"mail outgoing", exitOK, "GET /v1/mail/outgoing", `
BOX               HOME    MAILS     SIZE  OLDEST  CLASS  WHY                        ASKED IN
agent:ceo@laptop  laptop      7  4.0 KiB     60s  high   FULL: it has 100000 mails      5.0s
topic:orders      tablet      1     80 B    1.0s  -      -                                 -
`, ""},
		{"mail outgoing -o jsonl", exitOK, "GET /v1/mail/outgoing", "*", ""},
		{"mail outgoing ceo", exitUsage, "", "", "ceo"},
		{"mail show nothing", exitUsage, "", "", `"nothing" is not the id of a mail`},
		{"dlq ls --mailbox ceo", exitOK, "GET /v1/mailboxes/ceo/mails?limit=50&state=DEAD", dead, "there are more"},
		{"dlq ls --mailbox topic:orders/billing --all --since 1h", exitOK, "GET /v1/topics/topic:orders/subscriptions/billing/mails?limit=1000&since=2026-11-20T11%3A00%3A00Z&state=DEAD", "*", ""},
		{"dlq ls --mailbox ceo --kind shell", exitUsage, "", "", "--kind selects tasks and cannot be used with --mailbox"},
		{"dlq ls --mailbox topic:orders", exitUsage, "", "", "name one of its subscriptions"},
		{"dlq retry --mailbox ceo", exitOK, `POST /v1/mailboxes/ceo/redrive {"max":500}`, `
NEW MAIL                              BOX             SENT BEFORE
01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91  agent:ceo@here  no
`, "1 dead letters were sent again"},
		{"dlq retry --mailbox topic:orders/billing 7 9 --rate 1000 --to agent:ceo", exitOK, `POST /v1/topics/topic:orders/subscriptions/billing/redrive {"seqs":[7,9],"to":"agent:ceo","rate":1000,"max":1000}`, "*", ""},
		{"dlq retry --mailbox ceo 1 2 3 4 5 6 7 8 9 10 11 12 --rate 1", exitOK,
			`POST /v1/mailboxes/ceo/redrive {"seqs":[1,2,3,4,5,6,7,8,9,10],"rate":1,"max":10}; POST /v1/mailboxes/ceo/redrive {"seqs":[11,12],"rate":1,"max":10}`, "*", "2 dead letters were sent again"},
		{"dlq retry --mailbox topic:orders/again 7 9", exitRefused, `POST /v1/topics/topic:orders/subscriptions/again/redrive {"seqs":[7,9],"max":500}`, `
NEW MAIL                              BOX             SENT BEFORE
01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91  agent:ceo@here  no
`, "1 of 2 were not sent again; refused: dead letter 7 was already sent again"},
		{"dlq retry --mailbox topic:orders/full --to agent:ceo", exitRefused, `POST /v1/topics/topic:orders/subscriptions/full/redrive {"to":"agent:ceo","max":500}`, `
NEW MAIL                              BOX             SENT BEFORE
01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91  agent:ceo@here  no
`, "1 of 2 were not sent again; dead letter 9, after 1 were sent: full"},
		{"dlq retry --mailbox topic:orders/full --rate 1 1 2 3 4 5 6 7 8 9 10 11", exitRefused, `POST /v1/topics/topic:orders/subscriptions/full/redrive {"seqs":[1,2,3,4,5,6,7,8,9,10],"rate":1,"max":10}`, `
NEW MAIL                              BOX             SENT BEFORE
01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91  agent:ceo@here  no
`, "dead letter 9, after 1 were sent: full"},
		{"dlq retry --mailbox ceo 0", exitUsage, "", "", `"0" is not the number of a dead letter`},
		{"dlq retry --mailbox ceo --rate 0", exitUsage, "", "", "from 1 to 10000"},
		{"dlq retry --mailbox ceo --dry-run", exitUsage, "", "", "--dry-run"},
		{"dlq retry --rate 5", exitUsage, "", "", "add --mailbox BOX"},
	})
}

func TestMailSettle(t *testing.T) {
	runCases(t, []commandCase{
		{"mail ack 1.7.1 2.7.2 --box ceo", exitOK, `POST /v1/mailboxes/ceo/settle {"ack":["1.7.1","2.7.2"]}`, "1.7.1  OK\n2.7.2  OK\n", ""},
		{"mail ack 1.7.1 --box topic:orders/billing -o json", exitOK, `POST /v1/topics/topic:orders/subscriptions/billing/settle {"ack":["1.7.1"]}`, "*", ""},
		{"mail nack 1.7.1 --box ceo --delay 30s --reason 'rate limit'", exitOK, `POST /v1/mailboxes/ceo/settle {"nack":[{"lease":"1.7.1","delay":"30s","reason":"rate limit"}]}`, "1.7.1  OK\n", ""},
		{"mail nack 1.7.1 --box ceo --final", exitOK, `POST /v1/mailboxes/ceo/settle {"nack":[{"lease":"1.7.1","final":true}]}`, "1.7.1  OK\n", ""},
		{"mail extend 1.7.1 --box ceo --lease 10m", exitOK, `POST /v1/mailboxes/ceo/settle {"extend":[{"lease":"1.7.1","for":"10m"}]}`, "1.7.1  OK  the lease ends in 10m\n", ""},
		{"mail defer 1.7.1 --box ceo --delay 1h --reason later", exitOK, `POST /v1/mailboxes/ceo/settle {"defer":[{"lease":"1.7.1","delay":"1h","reason":"later"}]}`, "1.7.1  OK\n", ""},
		{"mail bounce 1.7.1 --box ceo --reason 'not me'", exitOK, `POST /v1/mailboxes/ceo/settle {"bounce":[{"lease":"1.7.1","reason":"not me"}]}`, "1.7.1  OK\n", ""},
		{"mail ack 9.7.1 --box ceo", exitRefused, `POST /v1/mailboxes/ceo/settle {"ack":["9.7.1"]}`, "9.7.1  STALE\n", "error: 9.7.1 is STALE: somebody else was given the mail since, or it has ended otherwise than by an acknowledgment"},
		{"mail ack 1.7.1 7.7.1 8.7.1 --box ceo", exitRefused, `POST /v1/mailboxes/ceo/settle {"ack":["1.7.1","7.7.1","8.7.1"]}`, "1.7.1  OK\n7.7.1  UNKNOWN\n8.7.1  OUT_OF_ORDER\n",
			"2 of 3 do not count; 7.7.1 is UNKNOWN: there was no such delivery of ceo: is it the right box?"},
		{"mail ack 1.7.1", exitUsage, "", "", "--box is missing: a handle alone does not name the box that it was read from"},
		{"mail ack --box ceo", exitUsage, "", "", "1 to 512 handles"},
		{"mail ack x --box ceo", exitUsage, "", "", `"x" is not a handle`},
		{"mail ack 1.7.1 --box topic:orders", exitUsage, "", "", "name one of its subscriptions"},
		{"mail ack 1.7.1 --box ceo --reason x", exitUsage, "", "", "unknown flag"},
		{"mail nack 1.7.1 --box ceo --final --delay 1s", exitUsage, "", "", "--delay and --final are both given"},
		{"mail nack 1.7.1 --box ceo --delay 31d", exitUsage, "", "", "--delay 31d: at most 30d"},
		{"mail extend 1.7.1 --box ceo", exitUsage, "", "", "--lease is missing"},
		{"mail extend 1.7.1 --box ceo --lease 0", exitUsage, "", "", "--lease"},
		{"mail ack" + strings.Repeat(" 1.7.1", 513) + " --box ceo", exitUsage, "", "", "1 to 512 handles"},
	})
}

func TestMailRead(t *testing.T) {
	const read = `
HANDLE  FROM    CLASS  KEY      ABOUT  TRY  LEASE  BODY
88.7.1  laptop  high   order-7  order    1    30s  hello there
89.7.2  laptop  high   order-7  order    2   5.0s  (11 B, not text)
`
	const lease = "POST /v1/mailboxes/ceo/lease "
	runCases(t, []commandCase{
		{"mail read ceo", exitOK, lease + `{"max":1}`, read, ""},
		{"mail read agent:ceo --max 10 --wait 30s --reader w1 --priority 2", exitOK, `POST /v1/mailboxes/agent:ceo/lease {"max":10,"wait":"30s","reader":"w1","priority":2}`, read, ""},
		{"mail read ceo --ack", exitOK, lease + `{"max":1}; POST /v1/mailboxes/ceo/settle {"ack":["88.7.1","89.7.2"]}`, read, ""},
		{"mail read topic:orders/billing --wait 1s", exitTimeout, `POST /v1/topics/topic:orders/subscriptions/billing/lease {"max":1,"wait":"1s"}`, "", "no mail came from topic:orders/billing within 1s"},
		{"mail read topic:orders/billing --ack -o json", exitTimeout, `POST /v1/topics/topic:orders/subscriptions/billing/lease {"max":1}`, "{\n  \"items\": []\n}\n", "no mail came from topic:orders/billing now"},
		{"mail read topic:orders", exitUsage, "", "", "name one of its subscriptions"},
		{"mail read ceo x", exitUsage, "", "", "one box at a time; arguments of a program need --exec before it"},
		{"mail read ceo --exec ./x --ack", exitUsage, "", "", "--ack and --exec are both given"},
		{"mail read topic:orders/billing --max 3 --exec ./x -a", exitUsage, "", "", "unknown shorthand flag: 'a' in -a: -- goes before the arguments of the program"},
		{"mail read ceo --exec ./x --colour", exitUsage, "", "", "-- goes before the arguments of the program"},
		{"mail read ceo -a", exitUsage, "", "", "unknown shorthand flag: 'a' in -a\n"},
		{"mail read ceo --exec /no/such/program --follow", exitUsage, "", "", `--exec: exec: "/no/such/program": stat /no/such/program: no such file or directory`},
		{"mail read ceo --exec no-such-program", exitUsage, "", "", `--exec: exec: "no-such-program": executable file not found in $PATH`},
		{"mail read topic:orders/billing --max 3 --exec sh", exitTimeout, `POST /v1/topics/topic:orders/subscriptions/billing/lease {"max":1}`, "", "no mail came from topic:orders/billing"},
		{"mail read ceo --max 513", exitUsage, "", "", "from 1 to 512"},
		{"mail read ceo --wait 11m", exitUsage, "", "", "--wait 11m: at most 10m"},
		{"mail read ceo --follow -o yaml", exitUsage, "", "", "--follow never ends and cannot be written as yaml"},
	})
	n := newMailNode()
	n.Answer("POST /v1/mailboxes/{box}/settle", wire.ErrNotFound)
	if code, out, errs := command(t, n, "mail", "read", "ceo", "--ack"); code != exitNotFound || out == "" || !strings.Contains(errs, "what was read is not acknowledged") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}

// What was printed is acknowledged, and then the next mail is waited for, across restarts.
func TestMailFollow(t *testing.T) {
	n, asked := newMailNode(), 0
	n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
		switch asked++; asked {
		case 1, 3:
			return wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "88.7.1", Until: testStart, Mail: testReceived("hello\nthere")}}}
		case 2:
			return wire.ErrStarting // it was restarted
		}
		return wire.ErrRefused
	})
	code, out, errs := command(t, n, "mail", "read", "ceo", "--follow", "--ack", "--max", "3")
	same(t, out, strings.Repeat("88.7.1  laptop  order-7  order  hello there\n", 2))
	const lease, ack = `POST /v1/mailboxes/ceo/lease {"max":3,"wait":"1m"}`, `POST /v1/mailboxes/ceo/settle {"ack":["88.7.1"]}`
	if calls := n.Requests(); code != exitRefused || !slices.Equal(calls, []string{lease, ack, lease, lease, ack, lease}) || !strings.Contains(errs, "the node is not running: waiting for it") {
		t.Errorf("%d, asked %q\n%s", code, calls, errs)
	}
}

// An acknowledgment that is lost in a restart, does not count, or whose outcome is unknown is
// told and ends nothing: the mail comes again if it has to. One that is refused for good ends it.
func TestMailFollowOutlivesAcknowledgments(t *testing.T) {
	n, leases, acks := newMailNode(), 0, 0
	n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
		leases++
		return wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "88.7." + strconv.Itoa(leases), Until: testStart, Mail: testReceived("hello")}}}
	})
	n.Answer("POST /v1/mailboxes/{box}/settle", func(*http.Request) any {
		switch acks++; acks {
		case 1:
			return wire.ErrStarting // it was restarted
		case 2:
			return wire.SettledMail{Items: []wire.SettledItem{{Lease: "88.7.2", Code: wire.SettledStale}}}
		case 3:
			return &wire.Problem{Code: wire.CodeUnknown, Status: http.StatusGatewayTimeout, Detail: "the home of ceo has not answered"}
		case 4:
			return &wire.Problem{Code: wire.CodeTimeout, Status: http.StatusGatewayTimeout, Detail: "the home of ceo is not reachable"}
		}
		return wire.ErrDenied
	})
	code, out, errs := command(t, n, "mail", "read", "ceo", "--follow", "--ack")
	if code != exitDenied || acks != 5 || strings.Count(out, "hello") != 5 {
		t.Errorf("%d after %d acknowledgments: %q, %q", code, acks, out, errs)
	}
	for _, want := range []string{"warning: what was read is not acknowledged, and may be delivered again: ", "warning: 88.7.2 is STALE: ", "has not answered", "is not reachable", "error: what was read is not acknowledged, "} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q lacks %q", errs, want)
		}
	}
}

// A watch of mail begins with what happens next, or with what the node still has, and asks for
// the events of one box.
func TestMailWatch(t *testing.T) {
	for _, tt := range []struct {
		line, calls string
		out         int
	}{
		{"mail watch ceo", "GET /v1/mailboxes/ceo; GET /v1/events?after=0&limit=1000&mail=ceo; GET /v1/events?after=4&limit=1000&mail=ceo&wait=30s", 1},
		{"mail watch --past --kind mail.", "GET /v1/events?after=0&limit=1000&mail=%2A&wait=30s; GET /v1/events?after=4&", 2},
	} {
		n, asked := newMailNode(), uint64(0)
		n.Answer("GET /v1/events", func(*http.Request) any {
			asked++
			if asked > 2 {
				return wire.ErrInvalid
			}
			e := wire.NodeEvent{Seq: 3 + asked, Time: testStart, Kind: "mail.done", Fields: map[string]string{"box": "agent:ceo@here", "number": "7"}}
			return wire.EventPage{Boot: testBoot, Items: []wire.NodeEvent{e}, Next: e.Seq}
		})
		code, out, errs := command(t, n, words(tt.line)...)
		if calls := strings.Join(n.Requests(), "; "); code != exitUsage || !strings.HasPrefix(calls, tt.calls) || strings.Count(out, "mail.done") != tt.out {
			t.Errorf("%s: %d, asked %q\n%s%s", tt.line, code, calls, out, errs)
		}
	}
}

func TestMailSend(t *testing.T) {
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("hi"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		line string
		code int
		call string
		errs string
	}{
		{"send agent:ceo hello --dedupe d", exitOK, `{"to":"agent:ceo","dedupe":"d","body":"aGVsbG8="}`, "stored on disk for agent:ceo@here in "},
		{"send agent:ceo --dedupe d @" + file, exitOK, `{"to":"agent:ceo","dedupe":"d","body":"aGk="}`, "stored on disk"},
		{"send agent:ceo --dedupe d -", exitOK, `{"to":"agent:ceo","dedupe":"d","body":"aW4="}`, "stored on disk"},
		{"send agent:ceo --dedupe known", exitOK, `{"to":"agent:ceo","dedupe":"known"}`, "existing mail: the dedupe key was used before by mail " + testMailID},
		{"send agent:ceo --dedupe d --relaxed", exitOK, `{"to":"agent:ceo","dedupe":"d","relaxed":true}`, "a power cut in the next 100 ms may take it"},
		{"send topic:orders --dedupe d --subject eu.created --class high --key k --ttl 1h --delay 5s --type t --content-type text/plain --reply-to agent:a --bounce-to agent:b --correlation c --sender s --label x=1 --label y= --receipt", exitOK,
			`{"to":"topic:orders","subject":"eu.created","class":"high","key":"k","dedupe":"d","ttl":"1h","delay":"5s","type":"t","content_type":"text/plain","reply_to":"agent:a","correlation":"c","sender":"s","bounce_to":"agent:b","labels":{"x":"1","y":""},"receipt":true}`, ""},
		{"send agent:ceo --dedupe d --at 2026-11-21T00:00:00Z", exitOK, `{"to":"agent:ceo","dedupe":"d","at":"2026-11-21T00:00:00Z"}`, ""},
		{"send agent:ceo --dedupe d --sender s --notify done", exitOK, `{"to":"agent:ceo","dedupe":"d","sender":"s","notify":"done"}`, ""},
		{"send", exitUsage, "", "takes a target and a body"},
		{"send agent:ceo a b", exitUsage, "", "takes a target and a body"},
		{"send agent:ceo @", exitUsage, "", "name the file"},
		{"send agent:ceo @" + filepath.Dir(file), exitUsage, "", "is a folder"},
		{"send agent:ceo @" + file + ".none", exitError, "", "no such file"},
		{"send agent:ceo --class urgent", exitUsage, "", "--class"},
		{"send agent:ceo --ttl soon", exitUsage, "", "--ttl"},
		{"send agent:ceo --delay 0s", exitUsage, "", "--delay"},
		{"send agent:ceo --at noon", exitUsage, "", "--at"},
		{"send agent:ceo --at 12:00 --delay 1s", exitUsage, "", "--at and --delay are both given: give one"},
		{"send agent:ceo --label x", exitUsage, "", "key=value"},
		{"reply 01a20c7e answer", exitOK,
			`{"to":"agent:boss@laptop","class":"high","key":"order-7","dedupe":"reply:` + testMailID + `","body":"YW5zd2Vy","correlation":"c-1","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","hops":3}`, "stored on disk for agent:boss@laptop"},
		{"reply 01a20c7e --class low --key k --dedupe d --correlation c", exitOK,
			`{"to":"agent:boss@laptop","class":"low","key":"k","dedupe":"d","correlation":"c","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","hops":3}`, ""},
		{"reply nothing answer", exitUsage, "", "is not the id of a mail"},
		{"reply", exitUsage, "", "takes a mail and a body"},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			n := newMailNode()
			socket := socketPath(t)
			clienttest.Serve(t, n, socket)
			w, out, errs := newTestApp()
			w.clock, w.in = clock.NewManual(testStart).Clock(), strings.NewReader("in")
			code := execute(t.Context(), w, append(append([]string{"mail"}, strings.Fields(tt.line)...), "--socket", socket))
			calls := strings.TrimPrefix(strings.Join(n.Requests(), "; "), "GET /v1/mail/01a20c7e; ")
			want := ""
			if tt.call != "" {
				want = "POST /v1/mail " + tt.call
				same(t, out.String(), testMailID+"\n")
			}
			if code != tt.code || calls != want || !strings.Contains(errs.String(), tt.errs) {
				t.Errorf("%d, want %d; the node was asked\n%s, want\n%s\n%s", code, tt.code, calls, want, errs)
			}
		})
	}
}

// A mail that is sent without a dedupe key gets one, and a failure says what to do.
func TestMailSendFailures(t *testing.T) {
	n := newMailNode()
	if _, _, errs := command(t, n, "mail", "send", "agent:ceo"); errs == "" || !strings.Contains(n.Requests()[0], `"producer":"`) {
		t.Errorf("a mail that is not numbered: %s", errs)
	}
	n.Answer("GET /v1/mail/{id}", wire.BoxedMail{ReceivedMail: wire.ReceivedMail{ID: testMailID}})
	if code, _, errs := command(t, n, "mail", "reply", "01a20c7e", "x"); code != exitRefused || !strings.Contains(errs, "names no box for replies") {
		t.Errorf("%d, %s", code, errs)
	}
	for err, want := range map[error]struct {
		code int
		says string
	}{
		wire.ErrFull:        {exitRefused, "read or purge what waits there, raise its limits (--mails, --bytes), or free disk space"},
		wire.ErrKeyConflict: {exitRefused, "use another --dedupe"},
		wire.ErrRefused:     {exitRefused, ""},
		wire.ErrNotFound:    {exitNotFound, ""},
		wire.ErrDenied:      {exitDenied, ""},
		wire.ErrDraining:    {exitRefused, "nothing was accepted"},
	} {
		n.Fail(err)
		code, out, errs := command(t, n, "mail", "send", "agent:ceo", "--dedupe", "d")
		if code != want.code || out != "" || !strings.Contains(errs, want.says) || strings.Contains(errs, "task") {
			t.Errorf("%v: %d, %q, %s", err, code, out, errs)
		}
	}
	old := clienttest.New(nil)
	old.Answer("/", &wire.Problem{Code: wire.CodeNotFound, Status: http.StatusNotFound, Fix: wire.NoRouteFix})
	for _, line := range []string{"mail send agent:ceo", "mailbox ls", "mailbox add ceo", "topic add orders", "mail read ceo", "sub rm orders billing --yes"} {
		if code, _, errs := command(t, old, strings.Fields(line)...); code != exitNotFound || !strings.Contains(errs, "this node does not support mail") {
			t.Errorf("%s at an older node: %d, %s", line, code, errs)
		}
	}
}

// Following ends when the node has become one of an older version, which has no mail.
func TestMailFollowEndsAtAnOlderNode(t *testing.T) {
	older := &wire.Problem{Code: wire.CodeNotFound, Status: http.StatusNotFound, Fix: wire.NoRouteFix}
	for _, line := range []string{"mail read ceo --follow", "mail read ceo --follow --ack", "mail read ceo --follow --exec true"} {
		n, leases := newMailNode(), 0
		n.Answer("POST /v1/mailboxes/{box}/lease", func(*http.Request) any {
			switch leases++; {
			case leases == 1:
				return wire.LeasedMail{}
			case leases == 2 && strings.Contains(line, "--ack"):
				n.Answer("POST /v1/mailboxes/{box}/settle", older)
				return wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "88.7.1", Until: testStart, Mail: testReceived("hello")}}}
			case leases > 4:
				return wire.ErrDenied
			}
			return older
		})
		if code, _, errs := command(t, n, strings.Fields(line)...); code != exitNotFound || leases != 2 || !strings.Contains(errs, "error: ") || !strings.Contains(errs, "this node does not support mail") {
			t.Errorf("%s: %d after %d leases: %s", line, code, leases, errs)
		}
	}
}

// A body is written unchanged to a file, and never to a terminal if it is not text.
func TestMailBody(t *testing.T) {
	m := testMail("WAITING")
	m.Body, m.Size = []byte("a\x00\x1b[2J"), 6
	for tty, want := range map[bool]string{false: "a\x00\x1b[2J", true: ""} {
		n := newMailNode()
		n.Answer("GET /v1/mail/{id}", m)
		socket := socketPath(t)
		clienttest.Serve(t, n, socket)
		w, out, errs := newTestApp()
		w.outTTY = tty
		code := execute(t.Context(), w, []string{"mail", "show", "01a20c7e", "--body", "--socket", socket})
		if out.String() != want || (code == exitOK) == tty || tty && !strings.Contains(errs.String(), "not text") {
			t.Errorf("terminal %v: %d, %q, %s", tty, code, out, errs)
		}
	}
	n := newMailNode()
	n.Answer("GET /v1/mail/{id}", m)
	if _, out, _ := command(t, n, "mail", "show", "01a20c7e"); !strings.Contains(out, "body      6 B, not text: balefire-node mail show 01a20c7e-5b1f-7d12 --body > FILE\n") || strings.Contains(out, "\x1b") {
		t.Errorf("shown:\n%s", out)
	}
}

func TestTopics(t *testing.T) {
	const get, sub = "GET /v1/topics/orders", "/v1/topics/orders/subscriptions/"
	runCases(t, []commandCase{
		{"topic ls", exitOK, "GET /v1/topics?limit=1000", `
TOPIC         STATE  MAILS     SIZE  OLDEST  SUBSCRIPTIONS  DEAD  DROPPED
topic:orders  open       7  4.0 KiB       -              1     1        3
`, ""},
		{"topic show orders", exitOK, get, shownTopic, ""},
		{"topic add new --age 7d --bytes 1GiB --interest --allow role:send", exitOK, `GET /v1/topics/new; PUT /v1/topics/new {"allow":["role:send"],"bytes":1073741824,"age":"7d","interest":true}`, "*", "topic:new: created"},
		{"topic add orders", exitRefused, get, "", "topic:orders exists"},
		{"topic set orders --age 0 --interest=false", exitOK, get + `; PUT /v1/topics/orders {"age":"","interest":false}`, shownTopic, "changed"},
		{"topic set new --age 1d", exitNotFound, "GET /v1/topics/new", "", ""},
		{"topic set orders", exitUsage, "", "", "nothing to set"},
		{"topic set orders --attempts 3", exitUsage, "", "", "unknown flag"},
		{"topic publish orders eu.created hi --dedupe d", exitOK, `POST /v1/mail {"to":"topic:orders","subject":"eu.created","dedupe":"d","body":"aGk="}`, testMailID + "\n", ""},
		{"topic publish topic:orders eu.created --dedupe d", exitOK, `POST /v1/mail {"to":"topic:orders","subject":"eu.created","dedupe":"d"}`, testMailID + "\n", ""},
		{"topic publish orders", exitUsage, "", "", "a topic, a subject and a body"},
		{"topic publish orders a --subject b", exitUsage, "", "", "unknown flag"},
		{"topic purge orders --yes", exitOK, "POST /v1/topics/topic:orders/purge {}", "removed 3 mails\n", ""},
		{"topic rm orders", exitUsage, "", "", "remove topic:orders cannot be undone"},
		{"topic rm topic:orders --yes", exitOK, "DELETE /v1/topics/topic:orders", "", "topic:orders: removed"},

		{"sub ls orders", exitOK, get, shownSubs, ""},
		{"sub", exitOK, "GET /v1/topics?limit=1000", strings.Replace(shownSubs, " 5 ", " - ", 1), ""},
		{"sub ls orders -o jsonl", exitOK, get, `{"topic":"topic:orders","name":"billing","settings":{"filter":"eu.>","mode":"shared","attempts":3,"lease":"2m","key_batch":2,"on_dead":"skip","paused":false,"dead":10000,"dead_age":"30d"},"waiting":5,"leased":2,"retrying":0,"dead":1,"blocked":0}` + "\n", ""},
		{"sub show orders billing", exitOK, get, shownSub, ""},
		{"sub show orders none", exitNotFound, get, "", "there is no topic:orders/none: create it with balefire-node sub add orders none"},
		{"sub add orders audit --filter 'eu.>' --from first --mode failover", exitOK, get + "; PUT " + sub + `audit {"filter":"eu.\u003e","mode":"failover","from":"first"}`, "*", "topic:orders/audit: created"},
		{"sub add orders billing", exitRefused, get, "", "topic:orders/billing exists"},
		{"sub add new billing", exitNotFound, "GET /v1/topics/new", "", ""},
		{"sub add orders", exitUsage, "", "", "a topic and a subscription"},
		{"sub set orders billing --attempts 5", exitOK, get + "; PUT " + sub + `billing {"attempts":5}`, shownSub, "changed"},
		{"sub set orders none --attempts 5", exitNotFound, get, "", "create it with"},
		{"sub set orders billing --filter a", exitUsage, "", "", "unknown flag"},
		{"sub set orders billing", exitUsage, "", "", "nothing to set"},
		{"sub seek orders billing first", exitOK, "POST " + sub + `billing/seek {"to":"first"}`, shownSub, "moved"},
		{"sub seek orders billing", exitUsage, "", "", "where to move it"},
		{"sub pause orders billing", exitOK, "POST /v1/topics/topic:orders/subscriptions/billing/pause", shownSub, "paused"},
		{"sub resume orders billing", exitOK, "POST /v1/topics/topic:orders/subscriptions/billing/resume", shownSub, "resumed"},
		{"sub rm orders billing", exitUsage, "", "", "remove topic:orders/billing cannot be undone"},
		{"sub rm orders billing --yes", exitOK, "DELETE " + sub + "billing", "", "topic:orders/billing: removed"},
	})
}

// What a node or a sender states cannot control the terminal or forge a line.
func TestMailIsSanitized(t *testing.T) {
	const evil = "x\x1b[2J\ny"
	m := testReceived(evil)
	m.From, m.Sender, m.Key, m.Type, m.ReplyTo, m.Correlation, m.Labels = evil, evil, evil, evil, evil, evil, map[string]string{"a": evil}
	boxed := wire.BoxedMail{ReceivedMail: m, State: evil, Reason: evil, Cause: evil, Died: ago(0), Tries: []wire.MailTry{{Cause: evil, Reader: evil, Reason: evil}}}
	v := testMailbox("ceo")
	v.Name, v.Subscriptions[0].Readers = evil, []string{evil}
	n := newMailNode()
	n.Answer("GET /v1/mail/{id}", boxed)
	n.Answer("GET /v1/mailboxes/{box}/mails", page(boxed))
	n.Answer("POST /v1/mailboxes/{box}/lease", wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "1.1.1", Mail: m}}})
	n.Answer("GET /v1/mailboxes/{box}", v)
	n.Answer("GET /v1/mailboxes", page(v))
	for line, most := range map[string]int{"mail show 01a20c7e": 22, "mail ls ceo": 2, "mail read ceo": 2, "mail read ceo -o wide": 2, "mailbox show ceo": 40, "mailbox ls": 2} {
		for _, format := range []string{"", "json", "yaml"} {
			args := strings.Fields(line)
			if format != "" {
				args = append(args, "-o", format)
			}
			_, out, _ := command(t, n, args...)
			if strings.Contains(out, "\x1b") || format == "" && strings.Count(out, "\n") > most {
				t.Errorf("%s:\n%q", args, out)
			}
		}
	}
}

func TestMailCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"mailbox show ":                 {"ceo\t7 waiting", "desk\t0 waiting"},
		"topic show ":                   {"orders\t7 mails"},
		"sub show orders ":              {"billing"},
		"sub seek orders billing ":      {"new", "first", "last"},
		"mail read ":                    {"ceo\t7 waiting", "desk\t0 waiting", "topic:orders/billing"},
		"mail ack 1.1.1 --box ":         {"ceo\t7 waiting", "desk\t0 waiting", "topic:orders/billing"},
		"dlq ls --mailbox ":             {"ceo\t7 waiting", "desk\t0 waiting", "topic:orders/billing"},
		"mail send ":                    {"agent:ceo@here", "agent:desk@here", "topic:orders"},
		"mail send agent:ceo ":          {"-\tstandard input", "@\ta file"},
		"topic publish orders a ":       {"-\tstandard input", "@\ta file"},
		"mail ls ceo --state ":          {"waiting", "leased", "retrying", "dead"},
		"mailbox set ceo --mode ":       {"shared", "exclusive", "failover"},
		"mailbox set ceo --strategy ":   {"ordered", "round_robin", "priority", "least_loaded"},
		"mailbox set ceo --on-dead ":    {"skip", "block"},
		"sub add orders x --from ":      {"new", "first", "last"},
		"mail send agent:ceo --class ":  {"critical", "high", "normal", "low"},
		"mail send agent:ceo --dedupe ": nil,
		"mail show ":                    nil,
		"mailbox add ":                  nil,
	} {
		socket := socketPath(t)
		clienttest.Serve(t, newMailNode(), socket)
		w, out, _ := newTestApp()
		w.environ = []string{"BALEFIRE_SOCKET=" + socket}
		execute(t.Context(), w, append([]string{"__complete"}, strings.Split(line, " ")...))
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		if got = got[:len(got)-1]; !slices.Equal(got, want) && len(got)+len(want) > 0 {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestMailHelp compares the help of the commands of mail with that in testdata.
func TestMailHelp(t *testing.T) {
	w, out, _ := newTestApp()
	var got bytes.Buffer
	walk(newRoot(w), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())
		if len(path) < 2 || !slices.Contains([]string{"mail", "mailbox", "topic", "sub"}, path[1]) {
			return
		}
		out.Reset()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "(default 0s)") {
			t.Errorf("%s: a flag shows a default of 0s", c.CommandPath())
		}
		help, _, _ := strings.Cut(out.String(), "\nGlobal Flags:")
		got.WriteString("-- " + c.CommandPath() + " --\n" + help)
	})
	const file = "testdata/mail.help"
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the help differs from %s: see the difference after go test -update", file)
	}
}

// The mail whose senders are not told is listed, and no other event.
func TestMailBounces(t *testing.T) {
	n := newCannedNode()
	bounced := wire.NodeEvent{Seq: 2, Time: testStart, Kind: wire.EventMailBounced, Peer: "laptop", Fields: map[string]string{"mail": testMailID, "to": "agent:boss", "cause": "no_box", "bounce": `{"cause":"expired"}`}}
	n.Answer("GET /v1/events", wire.EventPage{Boot: testBoot, Items: []wire.NodeEvent{testEvent(1), bounced}, Next: 2})
	code, out, _ := command(t, n, "mail", "bounces")
	if says := "laptop        mail " + testMailID + " was not delivered, and agent:boss is not told: there is no such mailbox ("; code != exitOK || strings.Count(out, "\n") != 2 || !strings.Contains(out, says) {
		t.Errorf("%d\n%s", code, out)
	}
	var page wire.EventPage
	code, out, _ = command(t, n, "mail", "bounces", "-o", "json")
	if err := json.Unmarshal([]byte(out), &page); err != nil || code != exitOK || len(page.Items) != 1 || page.Items[0].Fields["bounce"] == "" {
		t.Errorf("%d, %v\n%s", code, err, out)
	}
}
