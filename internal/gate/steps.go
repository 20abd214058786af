//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A step is one command with a verdict.
type step struct {
	name     string
	argv     []string
	dir      string                   // default the root of the module
	env      []string                 // added to that of the gate
	tests    []string                 // names of the tests that must pass
	covers   []string                 // packages whose product files it tests, and their imports
	reads    []string                 // other files and folders of the repository that it tests
	prepares bool                     // the other steps need its output
	timing   bool                     // judges times: two of at most three runs decide, and nothing else runs
	alone    bool                     // shares something of the machine with another step of soak
	again    func(step) (step, error) // what repeat runs; nil: no real processes or sockets
	estimate time.Duration            // on two idle cores, printed before a long run
}

const (
	nodeBinary = logs + "/balefire-node" // with failpoints
	testBinary = logs + "/e2e.test"
)

// product is what the tests of real processes cover.
var product = []string{"./cmd/balefire-node"}

// gateSteps are the steps of the gate, in order.
var gateSteps = []step{
	{name: "build", argv: sh("go build -tags failpoint -o " + nodeBinary + " ./cmd/balefire-node && go test -c -tags e2e -o " + testBinary + " ./e2e"), prepares: true},
	{name: "test", argv: sh("go test -timeout 120m ./..."), again: repeated},
	{name: "lint", argv: sh("make lint")},
	{name: "simulator", argv: goTest("./ownership", "TestSimulator"), tests: []string{"TestSimulator"}, env: []string{"BALEFIRE_SEEDS=5000"}},
	process("kill", "TestKillAtNamedPoints", "TestKillAfterRedrive", "TestKillAfterMove", "TestMailCrash"),
	process("leases", "TestKillAtPointsOfLeases", "TestTakeover"),
	process("power cut", "TestPowerCut"),
	process("full disk", "TestDiskFull"),
	process("behind NAT", "TestConesReachEachOther", "TestSituations"),
	process("containers", "TestThreeContainers"),
}

// soakSteps are the long forms; fuzzing comes first, since what it finds begins all again.
var soakSteps = slices.Concat([]step{
	fuzz("1m ./node FuzzReceivers", "1m ./identity FuzzDeed", "1m ./proto FuzzEveryMessage",
		"10s ./store/ledger FuzzBatch FuzzHeaders FuzzCheckpoint FuzzOpen", "10s ./proto FuzzLetter FuzzCutLetter FuzzMailMessages FuzzMailReceipt FuzzMailOffer",
		"10s ./mail/box FuzzRecord FuzzApply FuzzLoad FuzzForCopy", "10s ./mail/chain FuzzNotes FuzzUnpack", "10s ./mail FuzzTake FuzzAnswer",
		"10s ./mailbox FuzzReadElsewhere", "10s ./wire FuzzMailFrame FuzzMailOfQuery", "10s ./api FuzzStreamRequests FuzzDecodeMail"),
	{name: "race", argv: sh("make race"), env: []string{"CGO_ENABLED=1"}, covers: []string{"./..."}, reads: []string{"proto"}, estimate: 25 * time.Minute},
	{name: "protocol", argv: sh("make lint-proto"), covers: []string{"./proto"}, reads: []string{"proto", "buf.yaml", "tools"}, estimate: 2 * time.Minute},
	{name: "systems", argv: sh("make systems"), covers: []string{"./..."}, estimate: 5 * time.Minute},
	long("simulator", "./ownership", time.Minute, "BALEFIRE_SEEDS=50000", "TestSimulator"),
	long("every rule", "./ownership", time.Minute, "BALEFIRE_LONG=1", "TestEveryRuleIsMissed"),
	long("ledger", "./store/ledger", 5*time.Minute, "BALEFIRE_LONG=1", "TestPowerCuts", "TestKill", "TestEachBitFlip", "TestRebuildKeepsAllButTheDamage"),
	long("boxes of mail", "./mail/box", 3*time.Minute, "BALEFIRE_LONG=1", "TestModel", "TestModelByRapid", "TestEveryRuleIsMissed"),
	long("spools of mail", "./mail", time.Minute, "BALEFIRE_LONG=1", "TestSpools", "TestEveryRuleIsMissed"),
	long("week of mail", "./mail", 10*time.Minute, "BALEFIRE_MAIL_DAYS=7", "TestMovesOverAWeek"),
	long("chains of mail", "./mail/chain", time.Minute, "BALEFIRE_LONG=1", "TestSimulator", "TestEveryRuleIsMissed"),
	long("gossip hours", "./gossip", time.Minute, "BALEFIRE_GOSSIP_HOURS=200", "TestLifeguardHasFewerFalseVerdicts", "TestInvariantsHoldForManyHours"),
	long("queue hours", "./node", 7*time.Minute, "BALEFIRE_QUEUE_HOURS=20", "TestQueueHours"),
	long("mail hours", "./node", 7*time.Minute, "BALEFIRE_MAIL_HOURS=5", "TestMailHours"),
	long("mesh hours", "./node", 3*time.Minute, "BALEFIRE_VIRTUAL_HOURS=10", "TestVirtualHours"),
	long("weather", "./node", 2*time.Minute, "BALEFIRE_VIRTUAL_HOURS=4", "TestLifeguardWithWholeNodes"),
	long("burst", "./node", time.Minute, "BALEFIRE_VIRTUAL_HOURS=1", "TestBurstIsRepairedBySync"),
	long("whole meshes", "./node", 8*time.Minute, "BALEFIRE_LONG=1", "TestMembersKnowEachOther", "TestOneBadNode", "TestAllReturnAtNewAddresses",
		"TestFirstTaskAfterLinkRecovers", "TestAllReconnectAtOnce", "TestAllStartAtOnce", "TestIdleMeshIsQuiet"),
	long("clocks", "./node", 2*time.Minute, "BALEFIRE_LONG=1", "TestResultOfATargetWhoseClockWasWrong", "TestResultOfATargetThatRestarts", "TestBrieflyWrongClockOfAHome",
		"TestClockThatStaysWrong", "TestClocksApart", "TestClockTwentyYearsAhead", "TestTicketsOutliveAWrongClock", "TestRestoreTrustsNoClock", "TestScheduleUnderADoubtedClock", "TestTaskAcceptedAfterASnapshot", "TestAcceptedTaskStartsUnderAWrongClock"),
	long("marks", "./transfer", 2*time.Minute, "BALEFIRE_LONG=1", "TestSubmitsEndInTheMiddleOfAMark"),
	long("situations", "./node", 3*time.Minute, "BALEFIRE_LONG=1", "TestSituations"),
	{name: "probe", argv: sh("go test -tags e2e -count=20 -timeout 120m -v -run '^TestAuditHasTheProbe$' ./node"), tests: []string{"TestAuditHasTheProbe"}, covers: []string{"./node"}, estimate: time.Minute},
	long("strangers and load", "./node", 2*time.Minute, "BALEFIRE_LONG=1", "TestStrangersLeaveNothingBehind", "TestLoadLeavesNothingBehind"),
	long("the stuck one", "./ownership", 2*time.Minute, "BALEFIRE_LONG=1", "TestAStuckTaskIsFound"),
	long("churn", "./store/nuts", 3*time.Minute, "BALEFIRE_CHURN=1000000", "TestChurn"),
	long("churn on Pebble", "./store/pebble", 2*time.Minute, "BALEFIRE_CHURN=1000000", "TestChurn"),
	long("many keys", "./store/nuts", 3*time.Minute, "BALEFIRE_KEYS=5000000", "TestManyKeys"),
	long("many keys on Pebble", "./store/pebble", 3*time.Minute, "BALEFIRE_KEYS=5000000", "TestManyKeys"),
	long("meshes", "./transport", 2*time.Minute, "BALEFIRE_LONG=1", "TestFloodIsLimited", "TestAllMembersJoinTopic", "TestBurstOfRumors",
		"TestManyBehindOneAddress", "TestSymmetricStaysRelayed", "TestBigBodyThroughRelay", "TestOneContactFindsAllMembers", "TestRelaySwitchIsStable",
		"TestNonRelaysAreNotAsked", "TestShrinkingMTU", "TestSlowPathIsNotABlackHole", "TestRelaySituations"),
	long("damaged envelopes", "./identity", time.Minute, "BALEFIRE_LONG=1", "TestDamagedEnvelopesAreRefused"),
	long("histories of homes", "./outbox", 2*time.Minute, "BALEFIRE_ROUNDS=400", "TestModel"),
	{name: "benchmarks", argv: sh("cd bench && go test ./..."), covers: []string{"./api/client"}, reads: []string{"bench"}, estimate: 3 * time.Minute},
	{name: "a stop of the window", argv: goTest("./api/client", "TestAStopEndsWaiting"), env: []string{"BALEFIRE_LONG=1"}, tests: []string{"TestAStopEndsWaiting"}, covers: []string{"./api/client"}, timing: true, estimate: 10 * time.Second},
	{name: "lab", argv: sh("go test -tags e2e -count=1 -v ./internal/lab/..."), covers: []string{"./internal/lab/..."}, timing: true, estimate: 2 * time.Minute},
	{name: "LAN", argv: sh("go test -tags e2e -count=1 -v -run '^TestNodesFindEachOtherOnLAN$' ./transport"), tests: []string{"TestNodesFindEachOtherOnLAN"}, covers: []string{"./transport"}, estimate: 10 * time.Second},
	gateSteps[0],
},
	eachProcess(false,
		"TestKillAtRandomMoments", "TestKillAtNamedPoints", "TestKillAfterRedrive", "TestKillAfterMove", "TestMailCrash", "TestMailHandlerIsKilled", "TestMailMoveIsKilled", "TestMailHandoffIsKilled", "TestMailDLQ", "TestMailOrder", "TestMailTrace", "TestMailHomeIsPutBack", "TestMailOriginIsPutBack", "TestKillAtPointsOfLeases", "TestTakeover",
		"TestPowerCut", "TestDiskLosesPower", "TestDiskLosesWhatIsNotSynced", "TestCacheIsLost", "TestFileSystemShutdown", "TestBitFlip", "TestBitFlipInTheLastRecord", "TestDiskFull", "TestOutputsStopAtTheReserve", "TestChurn",
		"TestSmallMachineOpensWhatItAccepted", "TestStoreMovesToASmallerMachine", "TestHandlersPage", "TestFirstTaskPage", "TestMailPage", "TestReadmeFirstMail", "TestMailExamples", "TestOwnershipPage",
		"TestFlappingLinkAndDeaths", "TestAcksAreLost", "TestNoAnswerBeforeItsFsync", "TestManyFailures",
		"TestOwnershipNeverForks", "TestPoisonDiesAlone", "TestFewFileDescriptors", "TestNoProcessOutlivesItsTask", "TestStopSpendsNoAttempt",
		"TestNoHandlerTakesNothing", "TestLargeBodyCrossesRestarts", "TestLargeBodyThroughAQueue",
		"TestBadFramesOverARealSocket", "TestSymmetricStaysRelayed", "TestRouterIsAskedForPorts",
		"TestRunAsInTheSandboxOfTheUnit", "TestExposureOfTheUnit", "TestMeshOfContainers"),
	alone(eachProcess(false, "TestThreeContainers", "TestTwoCheckouts")), // the same networks as the mesh
	eachProcess(true,
		"TestMutantsAnswerTooEarly", "TestClocksApart", "TestLinkComesBack", "TestLinkComesBackOverTCP", "TestAddressChanges",
		"TestConesReachEachOther", "TestLaptopInTheCafe", "TestSituations", "TestRelayRestarts", "TestRelayDies"),
)

func sh(line string) []string { return []string{"bash", "-c", line} }

func goTest(pkg, test string) []string {
	return sh(fmt.Sprintf("go test %s -count=1 -timeout 120m -run '^%s$' -v", pkg, test))
}

// long returns the long form of tests of a package, selected by an environment variable.
func long(name, pkg string, estimate time.Duration, env string, tests ...string) step {
	return step{name: name, argv: goTest(pkg, "("+strings.Join(tests, "|")+")"), tests: tests, covers: []string{pkg}, env: []string{env}, estimate: estimate}
}

// fuzz returns the step that searches for inputs that break these targets, one after the other:
// each of them is written as the time for each target of a package, the package and its targets.
// By default a minute goes into making one new input smaller, and none would be left for others.
func fuzz(packages ...string) step {
	s := step{name: "fuzz"}
	var lines []string
	for _, p := range packages {
		f := strings.Fields(p)
		each, err := time.ParseDuration(f[0])
		if err != nil {
			panic(err)
		}
		for _, target := range f[2:] {
			lines = append(lines, fmt.Sprintf("go test -run '^$' -fuzzminimizetime 10x -fuzz '^%s$' -fuzztime %s %s", target, each, f[1]))
			s.estimate += each
		}
		s.covers = append(s.covers, f[1])
		s.estimate += time.Minute // it is built with instrumentation
	}
	s.argv = sh(strings.Join(lines, " && "))
	return s
}

// process returns a step of real processes, built by the step build.
func process(name string, tests ...string) step {
	line := "../" + testBinary + " -test.v -test.timeout 120m -test.run '^(" + strings.Join(tests, "|") + ")$'"
	return step{name: name, argv: sh(line), dir: "e2e", env: []string{"BALEFIRE_NODE=../" + nodeBinary}, tests: tests, covers: product, again: itself}
}

func itself(s step) (step, error) { return s, nil }

// eachProcess returns the long forms of tests of real processes, one step each.
func eachProcess(timing bool, tests ...string) (all []step) {
	for _, t := range tests {
		s := process(t, t)
		s.env, s.timing, s.reads, s.estimate = append(s.env, "BALEFIRE_LONG=1"), timing, reads[t], estimates[t]
		all = append(all, s)
	}
	return all
}

// alone marks steps that run while no other does.
func alone(steps []step) []step {
	for i := range steps {
		steps[i].alone = true
	}
	return steps
}

// images are the files of which the containers are made, besides the product files.
var images = []string{"Makefile", "Dockerfile", ".dockerignore", "docker-compose.yml", "scripts", "internal/lab/netlab", "internal/lab/netfilter"}

// reads has the files and folders that long forms test besides the product files.
var reads = map[string][]string{
	"TestHandlersPage":               {"docs/handlers.md", "docs/examples"},
	"TestFirstTaskPage":              {"docs/first-task.md", "docs/examples"},
	"TestMailPage":                   {"docs/mail.md", "docs/examples"},
	"TestReadmeFirstMail":            {"README.md"},
	"TestMailExamples":               {"docs/examples"},
	"TestOwnershipPage":              {"docs/ownership.md", "docs/examples"},
	"TestRunAsInTheSandboxOfTheUnit": {"packaging/systemd"},
	"TestExposureOfTheUnit":          {"packaging/systemd", "docs/operations.md"},
	"TestMeshOfContainers":           images,
	"TestThreeContainers":            append([]string{"docs/ownership.md"}, images...),
	"TestTwoCheckouts":               images,
}

// estimates has the durations of the slow long forms.
var estimates = map[string]time.Duration{
	"TestKillAtRandomMoments":  8 * time.Minute,
	"TestMailCrash":            2 * time.Minute,
	"TestKillAtPointsOfLeases": 3 * time.Minute,
	"TestKillAtNamedPoints":    5 * time.Minute,
	"TestOwnershipNeverForks":  7 * time.Minute,
	"TestAcksAreLost":          11 * time.Minute,
	"TestPoisonDiesAlone":      6 * time.Minute,
	"TestManyFailures":         3 * time.Minute,
	"TestLinkComesBack":        8 * time.Minute,
	"TestMeshOfContainers":     4 * time.Minute,
	"TestSituations":           12 * time.Minute,
	"TestDiskLosesPower":       15 * time.Minute,
	"TestFileSystemShutdown":   12 * time.Minute,
}

// choose returns the steps with these comma-separated names; all if there are none. Build
// steps are always included.
func choose(all []step, names string) ([]step, error) {
	if names == "" {
		return all, nil
	}
	var chosen []step
	want := strings.Split(names, ",")
	for _, s := range all {
		i := slices.Index(want, s.name)
		if i >= 0 {
			want = slices.Delete(want, i, i+1)
		}
		if i >= 0 || s.prepares {
			chosen = append(chosen, s)
		}
	}
	if len(want) > 0 {
		return nil, fmt.Errorf("unknown steps %q", want)
	}
	return chosen, nil
}
