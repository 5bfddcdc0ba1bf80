"""Why time passed as it did: causes of exposed communication with advice, and of idle devices."""
