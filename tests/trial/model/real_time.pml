/*
 * How tasks in real time store the rows of one Kafka partition, each for itself (docs/adr/0046-real-time.md).
 *
 * `make model` searches every order of events within these bounds. What is asserted: a flush puts the next records of
 * the source into the table, each of them once. A guard is taken away with -DNO_<name>, and then this must fail. Lines
 * that are printed are replayed against the real statements by ../test_model.py.
 */
#ifndef TASKS
#define TASKS 2		/* that live at the same time */
#endif
#ifndef RUNS
#define RUNS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 4	/* in all runs */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef RECORDS
#define RECORDS 3	/* of the partition; a flush has one or two */
#endif

/* A history that Spin plays by chance would otherwise end too soon to tell anything. */
#ifdef PLAYED
#define OFTEN :: skip :: skip :: skip :: skip :: skip :: skip
#else
#define OFTEN
#endif

/* The writer's row and the partition's. */
typedef Database { byte owner; byte claim; byte position; byte rows[RECORDS] };

Database now, standby;
byte runs, attempts;
byte faults = FAULTS;
bool replicated;
/* How far the driver knows that each run has stored: where it began, and what its finished tasks have reported. */
byte known[RUNS + 1];

/* What a flush compares. */
#ifdef NO_CLAIM
#define CLAIMS true
#else
#define CLAIMS (now.claim == attempt)
#endif
#ifdef NO_POSITION
#define STANDS true
#else
#define STANDS (now.position == stored)
#endif

inline copy_database(from_, to_) {
	to_.owner = from_.owner; to_.claim = from_.claim; to_.position = from_.position;
	for (i : 0 .. RECORDS - 1) { to_.rows[i] = from_.rows[i] }
}

/* Rows [first, next). A hole before them, or a second row of a record, is what must never be. */
inline write_rows() {
	assert(first == 0 || now.rows[first - 1] == 1);
	for (i : first .. next - 1) { now.rows[i]++; assert(now.rows[i] == 1) }
}

inline may_be_killed() {
#ifdef LIVENESS
	if :: skip :: attempts < ATTEMPTS -> goto end_begin fi
#else
	if :: skip OFTEN :: goto end_begin fi
#endif
}

proctype Task() {
	byte mine, attempt, begins, stored, first, next, i;
end_begin:
	atomic {
		if
		/* A new run: one transaction makes it the owner, and gives it the position. */
		:: runs < RUNS && attempts < ATTEMPTS -> runs++; now.owner = runs; now.claim = 0; known[runs] = now.position;
			printf("run %d %d\n", runs, now.position)
		/* Another attempt of the newest run, whether or not the one before it is dead. */
		:: runs > 0 && attempts < ATTEMPTS
		fi;
		mine = runs; attempts++; attempt = attempts; begins = known[mine]; stored = begins;
		printf("begin %d %d %d\n", attempt, mine, begins)
	}
	/* The claim. The ledger's rows are locked. */
	atomic {
		if
		:: now.owner != mine || now.claim > attempt -> printf("unclaimed %d\n", attempt); goto end_begin
#ifndef NO_KNOWN
		:: now.owner == mine && now.claim <= attempt && now.position < begins ->
			printf("unclaimed %d\n", attempt); goto end_begin
#endif
		:: else -> now.claim = attempt
		fi;
		/* Spark reads from where the run, or the batch, begins; what is stored of that is dropped. */
#ifdef NO_DROP
		stored = now.position; first = begins;
#else
		stored = now.position; first = (begins > stored -> begins : stored);
#endif
		printf("claim %d %d\n", attempt, first)
	}
flush:
	may_be_killed();
end_of_source:
	atomic {
		first < RECORDS;
		if :: next = first + 1 :: first + 2 <= RECORDS -> next = first + 2 fi
	}
again:
	/* One statement. */
	atomic {
		if
		:: now.owner == mine && CLAIMS && STANDS -> write_rows(); now.position = next; printf("flush %d %d %d\n", attempt, first, next);
			if
			:: stored = next; first = next; goto report
			:: faults > 0 -> faults--
			fi
		:: else -> printf("unwritten %d %d %d\n", attempt, first, next)
		fi
	}
	/* The answer is lost, or nothing was written: the task looks. */
	atomic {
		printf("look %d %d %d\n", attempt, now.owner == mine && now.claim == attempt, now.position);
		if
		:: now.owner != mine || now.claim != attempt || now.position < stored -> goto end_begin
		:: now.owner == mine && now.claim == attempt && now.position >= next -> stored = now.position; first = next
		:: now.owner == mine && now.claim == attempt && now.position == stored -> goto again
		:: else -> goto end_begin
		fi
	}
report:
	/* A task that has ended says how far it has come, and the next one begins. */
	atomic {
		if
		:: skip
		:: stored > known[mine] && attempts < ATTEMPTS ->
			known[mine] = stored; printf("report %d\n", attempt); goto end_begin
		fi
	}
	goto flush
}

proctype World() {
	byte i;
end_of_world:
	do
#ifdef PLAYED
	:: skip OFTEN
#endif
	:: atomic { !replicated -> replicated = true; copy_database(now, standby); printf("replicate\n") }
	:: atomic { replicated && faults > 0 -> faults--; copy_database(standby, now); printf("fail over\n") }
	od
}

init {
	byte d;
	atomic {
		for (d : 1 .. TASKS) { run Task() }
		run World()
	}
}

#ifdef LIVENESS
ltl goes_on { <> (now.rows[RECORDS - 1] == 1) }
#endif
