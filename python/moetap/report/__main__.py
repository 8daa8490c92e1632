import sys

from moetap.report._command import main

sys.exit(main())
