package ownership

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// A lease that is over is kept until its home says that no copy of its grant will come, and a
// result until its home answers. A home that does neither would fill the memory and the store of
// this node, so that what is kept for each is bounded: see [Config.MaxLeases].

// resultShare is how many bytes of results may wait for the answers of one home, for each lease
// that it may have here.
const resultShare = 512

// askAbove is how many leases of one home are kept before it is asked with each renewal which are
// over, also when it has none left to renew; one that does not answer is asked every askAgain.
const (
	askAbove = 1024
	askAgain = time.Minute
)

// askSettled asks the homes of many leases which of them are over: each Renewed says so.
func (o *Owner) askSettled() {
	for p, n := range o.leases {
		open := o.openRenews[p]
		if n >= askAbove && (len(open) == 0 || o.now.Boot-open[len(open)-1].sent >= askAgain) {
			o.sendRenew(p, nil)
		}
	}
}

// keepsEnough reports whether this node keeps so much for another home that it takes no more
// grants of it.
func (d *Driver) keepsEnough(home proto.PeerID) bool {
	most := d.owner.cfg.MaxLeases
	return home != d.cfg.Self && (d.owner.leases[home] >= most || d.records.unanswered[home] >= resultShare*most)
}
